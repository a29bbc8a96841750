// Requests a prediction for a picture and draws it: bars for classes, boxes for detections.
// Text is only set as text, because class names come from untrusted folder names.
"use strict";

const MOST_BARS = 10, LEAST_SCORE = 0.3, LOOK_MILLISECONDS = 2000;
const at = (id) => document.getElementById(id);
let about = null;

async function look() {
  try {
    const reply = await fetch("/page.json"), said = await reply.json();
    if (!reply.ok) throw new Error(said.error);
    if (!about) complain("");
    about = said;
    at("model").textContent = said.name;
    at("version").textContent = `version ${said.version}, @${said.alias}`;
    at("curl").textContent = `curl -d '{"instances": [{"b64": "…"}]}' ${location.origin}/v1/models/${said.name}:predict`;
  } catch (error) {
    at("version").textContent = about ? `the server does not answer: ${error.message}` : error.message;
  }
  setTimeout(look, LOOK_MILLISECONDS);
}

async function ask(file) {
  if (!about) return complain("There is no model to ask yet. Drop the picture again when the page shows a version.");
  complain("");
  const url = URL.createObjectURL(file), began = performance.now();
  try {
    const body = JSON.stringify({ instances: [{ b64: await asBase64(file) }] });
    const reply = await fetch(`/v1/models/${about.name}:predict`, { method: "POST", body, headers: { "Content-Type": "application/json" } });
    const said = await reply.json();
    if (!reply.ok) throw new Error(said.error);
    at("took").textContent = `${Math.round(performance.now() - began)} ms`;
    show(url, said.predictions[0]);
  } catch (error) {
    at("result").hidden = true;
    complain(error.message);
  }
}

function asBase64(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(new Error("the file can't be read"));
    reader.readAsDataURL(file);
  });
}

function show(url, prediction) {
  const picture = at("picture");
  picture.onload = () => picture.classList.toggle("is-small", picture.naturalWidth < 200);
  picture.src = url;
  at("bars").replaceChildren();
  at("boxes").replaceChildren();
  at("names").replaceChildren();
  at("json").textContent = JSON.stringify(prediction, null, 1);
  at("result").hidden = false;
  if (prediction.probabilities) showClasses(prediction.probabilities);
  else if (prediction.boxes) showBoxes(prediction);
  else { at("headline").textContent = "The model's answer"; at("raw").open = true; }
}

function showClasses(probabilities) {
  const ranked = probabilities.map((share, index) => ({ share, name: nameOf(index) })).sort((a, b) => b.share - a.share);
  at("headline").textContent = ranked[0].name;
  ranked.slice(0, MOST_BARS).forEach(({ name, share }) => addBar(name, share));
}

// Boxes are [top, left, bottom, right], as fractions of the picture's height and width.
function showBoxes({ boxes, scores, classes }) {
  const found = boxes.map((box, index) => ({ box, share: scores[index], name: nameOf(classes[index]) })).filter((each) => each.share >= LEAST_SCORE);
  at("headline").textContent = found.length === 1 ? "1 object" : `${found.length} objects`;
  at("boxes").setAttribute("viewBox", "0 0 1 1");
  for (const { box: [top, left, bottom, right], share, name } of found) {
    const drawn = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [key, value] of Object.entries({ x: left, y: top, width: right - left, height: bottom - top })) drawn.setAttribute(key, value);
    const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
    title.textContent = `${name} ${percent(share)}`;
    drawn.append(title);
    at("boxes").append(drawn);
    const tag = labelled("tag", name);
    [tag.style.left, tag.style.top] = [`${100 * left}%`, `${100 * top}%`];
    at("names").append(tag);
    addBar(name, share);
  }
}

function addBar(name, share) {
  const row = document.createElement("li"), bar = document.createElement("span"), filled = document.createElement("i");
  row.append(labelled("name", name), labelled("share", percent(share)), bar);
  bar.className = "bar";
  filled.style.width = `${100 * share}%`;
  bar.append(filled);
  at("bars").append(row);
}

function labelled(kind, text) {
  const made = document.createElement("span");
  made.className = kind;
  made.textContent = text;
  return made;
}

function complain(text) {
  at("problem").textContent = text;
  at("problem").hidden = !text;
}

const nameOf = (index) => about.class_names[index] ?? `class ${index}`;
const percent = (share) => `${(100 * share).toFixed(1)} %`;

const drop = at("drop");
at("file").addEventListener("change", (event) => event.target.files[0] && ask(event.target.files[0]));
document.addEventListener("paste", (event) => event.clipboardData.files[0] && ask(event.clipboardData.files[0]));
document.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("is-over"); });
document.addEventListener("dragleave", () => drop.classList.remove("is-over"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  drop.classList.remove("is-over");
  if (event.dataTransfer.files[0]) ask(event.dataTransfer.files[0]);
});
look();
