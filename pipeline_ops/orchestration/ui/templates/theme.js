// Takes the theme that a person has chosen in Airflow, which keeps it in the browser. "system" is none.
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
})();
