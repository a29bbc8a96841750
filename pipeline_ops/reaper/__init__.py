"""The end of jobs whose task instances no longer need them."""
