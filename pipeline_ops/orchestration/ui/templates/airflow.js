// What a page needs of the Airflow around it: its theme, and a way out of the frame that it is in.
// A frame with a job's page has no script. The server reads the theme for it from a cookie.
"use strict";
(function () {
  const path = new URL(".", document.currentScript.src).pathname;
  const follow = function () {
    const chosen = localStorage.getItem("theme");
    const theme = chosen === "light" || chosen === "dark" ? chosen : "";
    document.documentElement.style.colorScheme = theme;
    document.cookie = `trainyard_theme=${theme}; path=${path}; SameSite=Strict`;
  };
  follow();
  addEventListener("storage", function (event) {
    follow();
    if (event.key === "theme") for (const frame of document.querySelectorAll("iframe")) frame.src += "";
  });

  document.documentElement.classList.toggle("is-alone", window === window.parent);
  // Airflow's frame may not navigate the page around it, but that page may navigate itself.
  addEventListener("click", function (event) {
    const link = event.target.closest("a[target=_top]");
    const isPlain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey;
    if (!link || !isPlain || window === window.parent) return;
    event.preventDefault();
    const outer = window.parent.document.createElement("a");
    outer.href = link.href.baseVal ? new URL(link.href.baseVal, location.href).href : link.href;
    window.parent.document.body.append(outer);
    outer.click();
    outer.remove();
  });
  addEventListener("DOMContentLoaded", function () {
    for (const chart of document.querySelectorAll("svg.is-wide")) chart.parentElement.scrollLeft = chart.parentElement.scrollWidth;
  });
})();
