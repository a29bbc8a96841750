"""Questions that several threads ask within one block."""

import threading

import pytest

from pipeline_ops.errors import MachineError
from pipeline_ops.storage.request_cache import cache_requests, map_requests, prefetch, request_once


class Question:
    """A question that is answered when the test says so."""

    def __init__(self, answer):
        self.answer, self.times, self.may_end = answer, 0, threading.Event()
        self.has_begun = threading.Event()

    def __call__(self):
        return request_once("key", self._ask)

    def _ask(self):
        self.times += 1
        self.has_begun.set()
        assert self.may_end.wait(60)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_what_was_asked_ahead_is_waited_for_and_not_asked_again():
    question = Question("answer")
    with cache_requests():
        prefetch(question)
        assert question.has_begun.wait(60)
        threading.Timer(0.2, question.may_end.set).start()
        assert question() == "answer"
        assert map_requests(lambda _: question(), range(8)) == ["answer"] * 8
    assert question.times == 1


def test_all_who_wait_get_the_error_and_the_next_one_asks_again():
    question = Question(MachineError("the store is away"))
    with cache_requests():
        prefetch(question)
        assert question.has_begun.wait(60)
        threading.Timer(0.2, question.may_end.set).start()
        with pytest.raises(MachineError, match="is away"):
            question()
        assert question.times == 1
        question.answer = "answer"
        assert question() == "answer"


def test_that_there_is_nothing_is_an_answer():
    question = Question(FileNotFoundError())
    question.may_end.set()
    with cache_requests():
        for _ in range(3):
            with pytest.raises(FileNotFoundError):
                question()
    assert question.times == 1


def test_results_come_in_the_order_of_the_items_and_an_error_is_not_lost():
    assert map_requests(lambda number: number * 2, range(100)) == list(range(0, 200, 2))
    with pytest.raises(ZeroDivisionError):
        map_requests(lambda number: 1 / number, [1, 2, 0, 3])


def test_nothing_is_asked_after_the_end_of_a_block():
    question, later = Question("answer"), []
    with cache_requests():
        prefetch(lambda: (question(), request_once("other", lambda: later.append(1))))
        assert question.has_begun.wait(60)
        threading.Timer(0.2, question.may_end.set).start()
    assert question.times == 1 and not later
