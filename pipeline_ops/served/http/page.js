// Requests a prediction for a picture and draws it: bars for classes, boxes for detections.
// Text is only set as text, because class names come from untrusted folder names.
"use strict";

const MAX_BARS = 10, MIN_SCORE = 0.3, POLL_MILLISECONDS = 2000;
const element = (id) => document.getElementById(id);
let model = null;

async function poll() {
  try {
    const response = await fetch("/page.json"), result = await response.json();
    if (!response.ok) throw new Error(result.error);
    if (!model) showProblem("");
    model = result;
    element("model").textContent = result.name;
    element("version").textContent = `version ${result.version}, @${result.alias}`;
    element("curl").textContent = `curl -d '{"instances": [{"b64": "…"}]}' ${location.origin}/v1/models/${result.name}:predict`;
  } catch (error) {
    element("version").textContent = model ? `the server does not answer: ${error.message}` : error.message;
  }
  setTimeout(poll, POLL_MILLISECONDS);
}

async function predict(file) {
  if (!model) return showProblem("No model is loaded yet. Drop the picture again when the page shows a version.");
  showProblem("");
  const url = URL.createObjectURL(file), began = performance.now();
  try {
    const body = JSON.stringify({ instances: [{ b64: await toBase64(file) }] });
    const response = await fetch(`/v1/models/${model.name}:predict`, { method: "POST", body, headers: { "Content-Type": "application/json" } });
    const result = await response.json();
    if (!response.ok) throw new Error(result.error);
    element("took").textContent = `${Math.round(performance.now() - began)} ms`;
    show(url, result.predictions[0]);
  } catch (error) {
    element("result").hidden = true;
    showProblem(error.message);
  }
}

function toBase64(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(new Error("the file cannot be read"));
    reader.readAsDataURL(file);
  });
}

function show(url, prediction) {
  const picture = element("picture");
  picture.onload = () => picture.classList.toggle("is-small", picture.naturalWidth < 200);
  picture.src = url;
  element("bars").replaceChildren();
  element("boxes").replaceChildren();
  element("names").replaceChildren();
  element("json").textContent = JSON.stringify(prediction, null, 1);
  element("result").hidden = false;
  if (prediction.probabilities) showClasses(prediction.probabilities);
  else if (prediction.boxes) showBoxes(prediction);
  else { element("headline").textContent = "The model's answer"; element("raw").open = true; }
}

function showClasses(probabilities) {
  const ranked = probabilities.map((share, index) => ({ share, name: findClassName(index) })).sort((a, b) => b.share - a.share);
  element("headline").textContent = ranked[0].name;
  ranked.slice(0, MAX_BARS).forEach(({ name, share }) => addBar(name, share));
}

// Boxes are [top, left, bottom, right], as fractions of the picture's height and width.
function showBoxes({ boxes, scores, classes }) {
  const found = boxes.map((box, index) => ({ box, share: scores[index], name: findClassName(classes[index]) })).filter((each) => each.share >= MIN_SCORE);
  element("headline").textContent = found.length === 1 ? "1 object" : `${found.length} objects`;
  element("boxes").setAttribute("viewBox", "0 0 1 1");
  for (const { box: [top, left, bottom, right], share, name } of found) {
    const drawn = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [key, value] of Object.entries({ x: left, y: top, width: right - left, height: bottom - top })) drawn.setAttribute(key, value);
    const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
    title.textContent = `${name} ${percent(share)}`;
    drawn.append(title);
    element("boxes").append(drawn);
    const tag = createLabel("tag", name);
    [tag.style.left, tag.style.top] = [`${100 * left}%`, `${100 * top}%`];
    element("names").append(tag);
    addBar(name, share);
  }
}

function addBar(name, share) {
  const row = document.createElement("li"), bar = document.createElement("span"), filled = document.createElement("i");
  row.append(createLabel("name", name), createLabel("share", percent(share)), bar);
  bar.className = "bar";
  filled.style.width = `${100 * share}%`;
  bar.append(filled);
  element("bars").append(row);
}

function createLabel(kind, text) {
  const label = document.createElement("span");
  label.className = kind;
  label.textContent = text;
  return label;
}

function showProblem(text) {
  element("problem").textContent = text;
  element("problem").hidden = !text;
}

const findClassName = (index) => model.class_names[index] ?? `class ${index}`;
const percent = (share) => `${(100 * share).toFixed(1)} %`;

const drop = element("drop");
element("file").addEventListener("change", (event) => event.target.files[0] && predict(event.target.files[0]));
document.addEventListener("paste", (event) => event.clipboardData.files[0] && predict(event.clipboardData.files[0]));
document.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("is-over"); });
document.addEventListener("dragleave", () => drop.classList.remove("is-over"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  drop.classList.remove("is-over");
  if (event.dataTransfer.files[0]) predict(event.dataTransfer.files[0]);
});
poll();
