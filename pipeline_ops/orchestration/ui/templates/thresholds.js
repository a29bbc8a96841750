// Moves the threshold: puts the texts of the chosen one into every element with data-series.
"use strict";
(async function () {
  const slider = document.getElementById("threshold");
  if (!slider) return;
  let series;
  try {
    const answer = await fetch(slider.dataset.address, { credentials: "same-origin" });
    if (!answer.ok) return; // the form still works
    series = await answer.json();
  } catch (problem) {
    return;
  }
  const cells = document.querySelectorAll("[data-series]");
  const mark = document.querySelector("svg .mark");
  const axis = document.querySelector("svg .grid"); // as long as the x axis
  const [start, end] = ["x1", "x2"].map((name) => Number(axis.getAttribute(name)));

  const show = function () {
    const index = Number(slider.value);
    for (const cell of cells) {
      cell.textContent = series[cell.dataset.series][index];
      const total = cell.parentElement.dataset.total;
      if (total) cell.style.setProperty("--share", Number(cell.textContent) / Math.max(1, Number(total)));
    }
    const x = start + (index / Number(slider.max)) * (end - start);
    for (const name of ["x1", "x2"]) mark.setAttribute(name, x);
    slider.setAttribute("aria-valuetext", series.threshold[index]);
  };
  const keepInAddress = function () {
    const address = new URL(location.href);
    address.searchParams.set("threshold", slider.value);
    history.replaceState(null, "", address);
  };

  slider.addEventListener("input", show);
  slider.addEventListener("change", keepInAddress);
  for (const link of document.querySelectorAll("[data-threshold]")) {
    link.addEventListener("click", function (event) {
      event.preventDefault();
      slider.value = link.dataset.threshold;
      show();
      keepInAddress();
    });
  }
  slider.form.classList.add("is-live"); // hides the button
  show();
})();
