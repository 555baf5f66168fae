// What is shown while a model thinks: how long already, and how many steps of how many where they can be counted.

import { ask } from "/static/api.js";

const EVERY_MS = 1000;

export class Waiting {
  constructor(box, path, onWords) {
    this.began = performance.now();
    this.bar = document.createElement("progress");
    this.bar.setAttribute("aria-label", "computing");
    this.words = document.createElement("p");
    this.words.className = "soft";
    box.replaceChildren(this.words, this.bar);
    this.onWords = onWords;
    this.say("computing");
    this.timer = setInterval(() => this.look(path), EVERY_MS);
  }

  say(words) {
    this.words.textContent = words;
    this.onWords(words);
  }

  async look(path) {
    const seconds = Math.round((performance.now() - this.began) / 1000);
    try {
      const { working, done, total } = await ask(`${path}/progress`);
      if (!this.timer) return;
      if (total) [this.bar.max, this.bar.value] = [total, done];
      const steps = total ? `, ${done} of ${total} tiles` : "";
      this.say(`${working ? "computing" : "waiting for other work"}: ${seconds} s${steps}`);
    } catch {
      // the answer itself will say what is wrong
    }
  }

  end() {
    if (!this.timer) return; // the words are those of another question by now
    clearInterval(this.timer);
    this.timer = null;
    this.onWords("");
  }
}
