// The report after a reconnect: messages from the welcome of the new connection until its replay is complete.

export class Report {
  #root;
  #show;
  #returns = 0;
  #leftAt = null;
  #current = null;

  /** `show(id, text)` writes one fact; `root` carries the same facts as data attributes. */
  constructor(root, show) {
    this.#root = root;
    this.#show = show;
  }

  left() {
    this.#leftAt ??= Date.now();
  }

  welcomed({ previous, restored }) {
    if (!previous) return;
    const away = this.#leftAt === null ? 0 : Date.now() - this.#leftAt;
    this.#leftAt = null;
    this.#current = { previous, restored, away, subscriptions: [], offsets: [], gap: null };
  }

  /** The restored session still has this one. */
  subscription(stream) {
    this.#current?.subscriptions.push(stream);
  }

  replayed({ offset }) {
    this.#current?.offsets.push(offset);
  }

  gap(gap) {
    if (this.#current) this.#current.gap = gap;
  }

  /** The replay is complete: returns the report, or null without a reconnect. */
  finish() {
    const report = this.#current;
    this.#current = null;
    if (report) this.#write(report);
    return report;
  }

  #write({ previous, restored, subscriptions, away, offsets, gap }) {
    this.#show("report-restored", restored ? "yes" : "no");
    this.#show("report-subscriptions", subscriptions.join(", ") || "none, subscribed again");
    this.#show("report-replayed", counted(offsets));
    this.#show("report-gap", gap ? gap.reason : "none");
    this.#show("report-away", seconds(away));
    this.#show("report-previous", previous);
    Object.assign(this.#root.dataset, {
      restored: restored ? "yes" : "no",
      replayed: offsets.length,
      gap: gap ? gap.reason : "none",
      returns: ++this.#returns,
    });
  }
}

export function seconds(milliseconds) {
  return `${(milliseconds / 1000).toFixed(1)} s`;
}

function counted(offsets) {
  if (!offsets.length) return "0";
  const range = offsets.length > 1 ? `offsets ${offsets[0]}–${offsets.at(-1)}` : `offset ${offsets[0]}`;
  return `${offsets.length} (${range})`;
}
