// Draws the curves of runs over each other, as the form above them asks, with the values under the pointer.
"use strict";
(function () {
  const data = JSON.parse(document.getElementById("curves").textContent);
  const form = document.querySelector("form.controls");
  const figures = document.querySelectorAll("#charts figure");
  const [width, height, left, right, top, bottom] = [460, 240, 54, 12, 12, 34];

  const make = function (name, attributes, text) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const format = (value) => Number(value.toPrecision(4)).toString();

  // An exponential moving average, as TensorBoard's. 0 leaves the values as they are.
  const smooth = function (points, weight) {
    let mean = null;
    return points.map(function ([x, y]) {
      mean = mean === null ? y : weight * mean + (1 - weight) * y;
      return [x, mean];
    });
  };

  const listLines = function (metric, options) {
    const lines = [];
    for (const kind of options.training ? ["training", "validation"] : ["validation"]) {
      metric[kind].forEach(function (points, number) {
        const run = data.runs[number];
        const known = points.filter((point) => point[2] !== null && (!options.log || point[2] > 0));
        const drawn = smooth(known.map((point) => [point[options.x], point[2]]), options.smoothing);
        const best = known.findIndex((point) => point[0] === run.best);
        if (drawn.length) lines.push({ run, kind, points: drawn, best: kind === "validation" ? drawn[best] : undefined });
      });
    }
    return lines.sort((one, other) => (other.run.style === "champion") - (one.run.style === "champion"));
  };

  const computeTicks = function (low, high) {
    const rough = (high - low || Math.abs(high) || 1) / 4;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
    const ticks = [];
    for (let number = Math.ceil(low / step); number * step <= high; number++) ticks.push(number * step);
    return ticks;
  };

  const drawChart = function (figure, metric, options) {
    const lines = listLines(metric, options);
    const points = lines.flatMap((line) => line.points);
    if (!points.length) return;
    const toScale = options.log ? Math.log10 : (value) => value;
    const [xs, ys] = [points.map((point) => point[0]), points.map((point) => toScale(point[1]))];
    const [lowX, highX, lowY, highY] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const getX = (value) => left + ((value - lowX) / (highX - lowX || 1)) * (width - left - right);
    const getY = (value) => height - bottom - ((toScale(value) - lowY) / (highY - lowY || 1)) * (height - top - bottom);
    const svg = make("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": metric.title });
    for (const tick of computeTicks(lowY, highY)) {
      const y = getY(options.log ? 10 ** tick : tick);
      svg.append(make("line", { class: "grid", x1: left, x2: width - right, y1: y, y2: y }));
      svg.append(make("text", { class: "tick", "text-anchor": "end", x: left - 6, y: y + 4 }, format(options.log ? 10 ** tick : tick)));
    }
    for (const tick of computeTicks(lowX, highX).filter(Number.isInteger)) {
      svg.append(make("text", { class: "tick", "text-anchor": "middle", x: getX(tick), y: height - bottom + 17 }, tick));
    }
    svg.append(make("text", { class: "tick", "text-anchor": "middle", x: (left + width) / 2, y: height - 3 }, ["epoch", "step"][options.x]));
    for (const line of lines) {
      const path = line.points.map(([x, y]) => `${getX(x).toFixed(1)},${getY(y).toFixed(1)}`).join(" ");
      svg.append(make("polyline", { class: `curve ${line.run.style} is-${line.kind}`, points: path }));
      if (line.best) svg.append(make("circle", { class: `best ${line.run.style}`, cx: getX(line.best[0]), cy: getY(line.best[1]), r: 3.5 }));
    }
    const rule = svg.appendChild(make("line", { class: "mark", y1: top, y2: height - bottom, visibility: "hidden" }));
    const values = document.createElement("p");
    values.className = "values soft";
    svg.addEventListener("pointermove", function (event) {
      const box = svg.getBoundingClientRect();
      const at = lowX + (((event.clientX - box.left) * width) / box.width - left) / (width - left - right) * (highX - lowX);
      const nearest = (line) => line.points.reduce((one, other) => (Math.abs(other[0] - at) < Math.abs(one[0] - at) ? other : one));
      const x = nearest(lines[lines.length - 1])[0];
      for (const end of ["x1", "x2"]) rule.setAttribute(end, getX(x));
      rule.setAttribute("visibility", "visible");
      const words = lines.map((line) => `${line.run.name}${line.kind === "training" ? ", training" : ""} ${format(nearest(line)[1])}`);
      values.textContent = `${["Epoch", "Step"][options.x]} ${x}: ${words.join(" · ")}`;
    });
    figure.replaceChildren(figure.querySelector("figcaption"), svg, values);
  };

  const draw = function () {
    const options = { x: Number(form.x.value), smoothing: Number(form.smoothing.value), log: form.log.checked, training: form.training.checked };
    data.metrics.forEach((metric, number) => drawChart(figures[number], metric, options));
  };

  // A curve whose values differ by more than a hundred times is flat on a linear scale.
  form.log.checked = data.metrics.some(function (metric) {
    const values = [...metric.validation, ...metric.training].flat().map((point) => point[2]).filter((value) => value > 0);
    return values.length > 0 && Math.max(...values) > 100 * Math.min(...values);
  });
  form.hidden = false;
  form.addEventListener("input", draw);
  draw();
})();
