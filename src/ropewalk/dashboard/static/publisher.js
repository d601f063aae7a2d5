// Publishes the page's messages in order, one request at a time, with retries.
// A publication keeps its uid in every retry, so that it is registered once.

const MAX_WAITING = 50;
const FIRST_DELAY = 500;
const MAX_DELAY = 8_000;

export class Publisher {
  #url;
  #stream;
  #mayGo;
  #refused;
  #waiting = [];
  #attempts = 0;
  #busy = false;

  /** `mayGo()` returns whether requests may be sent; `refused(uid, reason)` is called for a publication that the server refuses. */
  constructor({ url, stream, mayGo, refused }) {
    this.#url = url;
    this.#stream = stream;
    this.#mayGo = mayGo;
    this.#refused = refused;
  }

  /** Returns false if too many messages are waiting. */
  publish(uid, data) {
    if (this.#waiting.length >= MAX_WAITING) return false;
    this.#waiting.push({ stream: this.#stream, data: JSON.stringify(data), uid });
    this.flush();
    return true;
  }

  async flush() {
    if (this.#busy) return;
    this.#busy = true;
    while (this.#waiting.length && this.#mayGo()) {
      if (await this.#sent(this.#waiting[0])) this.#waiting.shift();
      else await this.#pause();
    }
    this.#busy = false;
  }

  /** Returns true if the publication needs no further attempt. */
  async #sent(publication) {
    try {
      const answer = await fetch(this.#url, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(publication),
      });
      if (answer.status >= 500 || answer.status === 429) return false;
      if (!answer.ok) this.#refused(publication.uid, await reason(answer));
    } catch {
      return false;
    }
    this.#attempts = 0;
    return true;
  }

  #pause() {
    const ceiling = Math.min(MAX_DELAY, FIRST_DELAY * 2 ** this.#attempts++);
    return new Promise((resolve) => setTimeout(resolve, ceiling * (0.5 + Math.random() / 2)));
  }
}

async function reason(answer) {
  const text = await answer.text();
  try {
    return JSON.parse(text).error ?? text;
  } catch {
    return text || `status ${answer.status}`;
  }
}
