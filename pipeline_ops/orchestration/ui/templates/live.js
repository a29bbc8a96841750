// Keeps a page with the attribute data-live up to date: fetches it again and replaces its <main>.
"use strict";
(function () {
  const seconds = Number(document.querySelector("main[data-live]")?.dataset.live) || 2;
  const isInUse = (main) => main.contains(document.activeElement) && document.activeElement.matches("input") || main.querySelector("input:checked");
  const remember = function (main) {
    return new Set(Array.from(main.querySelectorAll("details[open]"), (d) => d.id));
  };
  const refresh = async function () {
    const old = document.querySelector("main[data-live]");
    if (!old) return;
    if (!document.hidden && !isInUse(old)) {
      try {
        const answer = await fetch(location.href, { credentials: "same-origin" });
        if (answer.ok) {
          const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
          if (!fresh) return location.reload(); // the page has become another one, such as the report
          const open = remember(old);
          for (const details of fresh.querySelectorAll("details")) details.open = details.open || open.has(details.id);
          old.replaceWith(document.adoptNode(fresh));
          document.body.classList.remove("is-stale");
        } else {
          document.body.classList.add("is-stale");
        }
      } catch (problem) {
        document.body.classList.add("is-stale");
      }
    }
    setTimeout(refresh, 1000 * seconds);
  };
  setTimeout(refresh, 1000 * seconds);
})();
