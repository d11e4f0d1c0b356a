// SPDX-License-Identifier: Apache-2.0

// rows keeps elements for those of many rows that are seen, and no others.
//
// make() makes an element, fill(element, index) shows a row in it. seen(from, to) is told
// a moment after scrolling has ended.
export class Rows {
  constructor({ scroller, height, header = 0, make, fill, seen }) {
    Object.assign(this, { scroller, height, header, make, fill, seen });
    this.count = 0;
    this.shown = new Map();
    this.spare = [];
    this.body = document.createElement('div');
    this.body.className = 'rows';
    this.body.setAttribute('role', 'rowgroup');
    scroller.append(this.body);
    this.draw = this.draw.bind(this);
    this.later = this.later.bind(this);
    scroller.addEventListener('scroll', this.later, { passive: true });
    // Until the browser has laid the page out by itself, rows for the whole window are made:
    // who asks it for a height has it lay out what is about to change.
    this.measured = false;
    this.observer = new ResizeObserver(() => { this.measured = true; this.later(); });
    this.observer.observe(scroller);
  }

  end() {
    this.observer.disconnect();
    cancelAnimationFrame(this.frame);
    clearTimeout(this.settled);
    this.ended = true;
  }

  setCount(count) {
    this.count = count;
    this.body.style.height = count * this.height + 'px';
    this.draw();
  }

  // range is what is seen, with some rows more for who scrolls.
  range(more) {
    const top = this.measured ? this.scroller.scrollTop : 0;
    const height = (this.measured ? this.scroller.clientHeight : innerHeight) - this.header;
    return [
      Math.max(0, Math.floor(top / this.height) - more),
      Math.min(this.count, Math.ceil((top + height) / this.height) + more),
    ];
  }

  later() {
    if (!this.frame) this.frame = requestAnimationFrame(this.draw);
    clearTimeout(this.settled);
    this.settled = setTimeout(() => this.seen && !this.ended && this.seen(...this.range(0)), 250);
  }

  draw() {
    this.frame = 0;
    const [from, to] = this.range(4);
    for (const [index, element] of this.shown) {
      if (index < from || index >= to) {
        this.shown.delete(index);
        element.hidden = true;
        this.spare.push(element);
      }
    }
    for (let index = from; index < to; index++) {
      if (!this.shown.has(index)) this.show(index);
    }
  }

  show(index) {
    let element = this.spare.pop();
    if (!element) {
      element = this.make();
      this.body.append(element);
    }
    element.hidden = false;
    element.style.transform = `translateY(${index * this.height}px)`;
    this.shown.set(index, element);
    this.fill(element, index);
  }

  // refresh fills all that is seen again.
  refresh() {
    for (const [index, element] of this.shown) this.fill(element, index);
  }

  reveal(index) {
    const top = index * this.height;
    const bottom = top + this.height - (this.scroller.clientHeight - this.header);
    if (this.scroller.scrollTop > top) this.scroller.scrollTop = top;
    else if (this.scroller.scrollTop < bottom) this.scroller.scrollTop = bottom;
    this.draw();
  }
}
