// SPDX-License-Identifier: Apache-2.0

// The cluster as a map of planes: a column for each path, a row for each node.

import { afterPainting, clock, el, isPainted, nodeLink, plural, podLink, put, rate, share, text } from './dom.js';
import { Rows } from './rows.js';
import { carries, look, sentence, stateOf, stateWords, store } from './store.js';

const rowHeight = 58;
const maxAsked = 32; // at once, by the server too

export class ClusterPage {
  constructor(main) {
    document.title = 'Braid: ' + ((store.head && store.head.context) || 'cluster');
    this.active = null; // row and column that keys have chosen
    this.only = false;
    this.header = el('div', { class: 'row head', role: 'row', 'aria-rowindex': '1' });
    this.grid = el('div', {
      class: 'grid', role: 'grid', tabindex: '0', 'aria-label': 'Nodes and their NICs, a column for each path', 'aria-describedby': 'keys',
      onkeydown: (event) => this.key(event), onpointerover: (event) => this.hover(event), onfocus: () => this.activate(this.active || [0, 1]),
    }, this.header);
    this.detail = el('p', { class: 'detail', id: 'detail' });
    this.reports = el('ol', { class: 'reports', 'aria-label': 'What is wrong now, and what happened, newest first' });
    this.reportsTitle = el('h2', {}, 'What happens');
    this.empty = el('div', { class: 'empty', hidden: true });
    this.onlyBox = el('input', { type: 'checkbox', onchange: (event) => { this.only = event.target.checked; this.list(); } });
    this.count = el('span', { class: 'muted' });
    put(main,
      el('div', { class: 'cluster' },
        el('section', { class: 'map', 'aria-label': 'Map of the planes' },
          el('div', { class: 'tools' }, el('h1', {}, 'Nodes and planes'), this.count,
            el('span', { class: 'legend' }, el('i', { class: 'key in' }), 'received', el('i', { class: 'key out' }), 'sent, as a share of the NIC’s capacity'),
            el('label', {}, this.onlyBox, ' only with problems')),
          this.empty, this.grid, this.detail,
          el('p', { class: 'keys', id: 'keys' }, 'Arrow keys choose a NIC, Enter opens its node, / finds, t changes the colours.')),
        el('aside', { 'aria-label': 'Reports' }, this.reportsTitle, this.reports)));
    this.rows = new Rows({
      scroller: this.grid, height: rowHeight, header: 64, make: () => this.make(), fill: (row, index) => this.fill(row, index),
      seen: () => this.look(),
    });
    this.update('state');
    afterPainting(() => this.ended || this.look());
  }

  end() {
    this.ended = true;
    this.rows.end();
  }

  look() {
    const [from, to] = this.rows.range(0);
    look(this.names.slice(from, to).slice(0, maxAsked).map((name) => ['node', name]));
  }

  update(what) {
    if (what === 'state') {
      this.columns();
      this.list();
      this.showNews();
    } else if (what === 'nics') {
      this.rows.refresh();
    }
    this.tell();
  }

  // columns are made again where the paths are others.
  columns() {
    const paths = (store.head && store.head.paths) || [];
    const names = paths.map((path) => path.name).join('\n');
    if (this.columnNames !== names) {
      this.columnNames = names;
      this.paths = paths.map((path) => path.name);
      this.grid.style.setProperty('--columns', String(paths.length));
      this.grid.setAttribute('aria-colcount', String(paths.length + 1));
      this.rows.body.replaceChildren();
      this.rows.shown.clear();
      this.rows.spare = [];
    }
    put(this.header, el('div', { role: 'columnheader', class: 'name' }, 'Node'), paths.map((path) => this.column(path)));
  }

  column(path) {
    const wrong = new Map();
    let nodes = 0;
    for (const node of store.nodes.values()) {
      const nic = node.byPath.get(path.name);
      if (!nic) continue;
      nodes++;
      if (nic.is !== 'up') wrong.set(nic.is, (wrong.get(nic.is) || 0) + 1);
    }
    let told = nodes ? `${nodes} NICs, all up` : `up on ${path.up} of ${path.nodes} nodes`;
    if (nodes === 1) told = '1 NIC, up';
    const kinds = [...wrong].map(([state, count]) => `${count} ${stateWords[state]}`);
    if (wrong.size) told = `${nodes - sum(wrong.values())} of ${nodes} up` + (wrong.size === 1 ? ' · ' + kinds[0] : '');
    return el('div', { role: 'columnheader', title: [...kinds, path.problem].filter(Boolean).join(', ') || null },
      el('strong', {}, path.name), path.capacityBitsPerSecond ? el('span', { class: 'muted' }, ' ' + rate(path.capacityBitsPerSecond)) : null,
      el('div', { class: wrong.size || (!nodes && path.problem) ? 'told bad' : 'told muted' }, told));
  }

  // list decides which nodes there are to see.
  list() {
    this.names = this.only ? store.names.filter((name) => store.nodes.get(name).trouble) : store.names;
    this.grid.setAttribute('aria-rowcount', String(this.names.length + 1));
    const troubled = store.names.filter((name) => store.nodes.get(name).trouble).length;
    text(this.count, `${plural(store.names.length, 'node')}${troubled ? `, ${troubled} with problems` : ''}`);
    this.emptyState();
    this.rows.setCount(this.names.length);
    this.rows.refresh();
    this.rows.later();
    if (this.names.length) firstPicture();
  }

  emptyState() {
    let words = null;
    const head = store.head;
    if (head && !this.names.length) {
      const left = head.status.leftOut || [];
      if (this.only) words = ['No node has a problem.'];
      else if (left.some((what) => what.startsWith('MPTCPNodes'))) {
        words = ['You may not read the nodes’ NICs. The paths above are those that you may read; / finds the pods of namespace ' + head.namespace + '.'];
      } else words = ['No node has an agent yet. kubectl braid init says what is missing.'];
    } else if (head && !head.paths.length) {
      words = ['There is no path yet: kubectl braid init --apply makes one of each plane.'];
    }
    this.empty.hidden = !words;
    if (words) put(this.empty, words.map((word) => el('p', {}, word)));
  }

  make() {
    const row = el('div', { class: 'row', role: 'row' });
    row.name = el('a', {});
    row.sub = el('div', { class: 'sub' });
    row.cells = this.paths.map(() => makeCell());
    put(row, el('div', { class: 'name', role: 'rowheader' }, row.name, row.sub), row.cells.map((cell) => cell.element));
    return row;
  }

  fill(row, index) {
    const node = store.nodes.get(this.names[index]);
    if (!node) return;
    row.index = index;
    row.setAttribute('aria-rowindex', String(index + 2));
    row.classList.toggle('silent', Boolean(node.silent || node.noAgent));
    text(row.name, node.name);
    row.name.href = nodeLink(node.name);
    row.name.tabIndex = -1;
    const told = subOf(node);
    text(row.sub, told.words);
    row.sub.className = 'sub ' + told.kind;
    row.sub.title = node.problem || '';
    this.paths.forEach((path, column) => {
      fillCell(row.cells[column], node, path);
      const id = `c${index}-${column + 1}`;
      row.cells[column].element.id = id;
      row.cells[column].element.classList.toggle('active', Boolean(this.active && this.active[0] === index && this.active[1] === column + 1));
    });
  }

  key(event) {
    if (event.target !== this.grid) return;
    let [row, column] = this.active || [0, 1];
    const page = Math.max(1, Math.floor((this.grid.clientHeight - 64) / rowHeight) - 1);
    const moves = {
      ArrowDown: () => row++, ArrowUp: () => row--, ArrowRight: () => column++, ArrowLeft: () => column--, PageDown: () => { row += page; },
      PageUp: () => { row -= page; }, Home: () => { row = 0; }, End: () => { row = this.names.length - 1; },
      Enter: () => { if (this.names[row]) location.hash = nodeLink(this.names[row]); },
    };
    const move = moves[event.key];
    if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    move();
    this.activate([row, column], true);
  }

  activate([row, column], reveal) {
    if (!this.names.length || !this.paths.length) return;
    this.active = [Math.min(Math.max(row, 0), this.names.length - 1), Math.min(Math.max(column, 1), this.paths.length)];
    if (reveal) this.rows.reveal(this.active[0]);
    this.rows.refresh();
    this.grid.setAttribute('aria-activedescendant', `c${this.active[0]}-${this.active[1]}`);
    this.pointed = null;
    this.tell();
  }

  hover(event) {
    const cell = event.target.closest('.cell');
    const row = event.target.closest('.row');
    if (!cell || !row || row.index === undefined) return;
    this.pointed = [row.index, row.cells.findIndex((one) => one.element === cell) + 1];
    this.tell();
  }

  // tell says all of the NIC that is chosen.
  tell() {
    const chosen = this.pointed || this.active;
    const node = chosen && store.nodes.get(this.names[chosen[0]]);
    if (!node || !this.paths[chosen[1] - 1]) {
      text(this.detail, store.agents ? 'What NICs carry is not known: ' + store.agents : '');
      return;
    }
    const path = this.paths[chosen[1] - 1];
    const now = carries(node.name, path);
    let words = sentence(node, path);
    if (store.unread.has(node.name)) words += '. What it carries is not known: ' + store.unread.get(node.name);
    else if (now) {
      words += `. Sends ${rate(now.sentBitsPerSecond)}${inBrackets(share(now.sentBitsPerSecond, now.capacity))}, ` +
        `receives ${rate(now.receivedBitsPerSecond)}${inBrackets(share(now.receivedBitsPerSecond, now.capacity))}; ` +
        `of it ${rate(now.subflowsSentBitsPerSecond + now.subflowsReceivedBitsPerSecond)} by ${plural(now.subflows, 'subflow')}`;
    }
    text(this.detail, words);
  }

  showNews() {
    const head = store.head;
    if (!head) return;
    const key = JSON.stringify(head.reports) + head.older + (head.status.leftOut || []);
    if (key === this.newsKey) return;
    this.newsKey = key;
    const items = head.reports.slice(0, isPainted() ? undefined : firstReports).map(reportItem);
    if (items.length < head.reports.length) { // nobody has scrolled yet
      afterPainting(() => { this.newsKey = ''; this.showNews(); });
    }
    if (!items.length) items.push(el('li', { class: 'empty' }, 'Nothing is wrong, and nothing was reported in the last hour.'));
    if (head.older) items.push(el('li', { class: 'muted' }, `and ${head.older} more: kubectl braid status, kubectl braid events`));
    put(this.reports, items);
    this.leftOut(head.status.leftOut || []);
  }

  leftOut(left) {
    if (!left.length) return;
    this.reports.append(el('li', { class: 'left' }, el('strong', {}, 'Left out, because you may not read it'), el('ul', {}, left.map((what) => el('li', {}, what)))));
  }
}

const sum = (numbers) => [...numbers].reduce((all, one) => all + one, 0);
const inBrackets = (words) => (words ? ` (${words})` : '');

function subOf(node) {
  if (node.noAgent) return { words: 'no agent', kind: 'muted' };
  if (node.silent) return { words: 'agent away', kind: 'bad' };
  if (store.unread.has(node.name)) return { words: 'agent does not answer', kind: 'warn' };
  if (node.problem) return { words: node.problem.split(':')[0], kind: 'bad' };
  if (node.wrong) return { words: `${node.wrong} of ${plural(node.pods, 'pod')} not programmed`, kind: 'bad' };
  if (node.notSpread) return { words: `${node.notSpread} of ${plural(node.pods, 'pod')} not spread`, kind: 'warn' };
  return { words: node.pods ? plural(node.pods, 'pod') : 'no pods', kind: 'muted' };
}

// makeCell makes what shows a NIC: received to the left, sent to the right of it.
function makeCell() {
  const cell = { fillIn: el('i', {}), fillOut: el('i', {}), dot: el('b', {}), inText: el('span', {}), nic: el('span', { class: 'nic' }), outText: el('span', {}) };
  cell.element = el('div', { class: 'cell', role: 'gridcell' },
    el('div', { class: 'bars', 'aria-hidden': 'true' }, el('div', { class: 'in' }, cell.fillIn), cell.dot, el('div', { class: 'out' }, cell.fillOut)),
    el('div', { class: 'labels', 'aria-hidden': 'true' }, cell.inText, cell.nic, cell.outText));
  return cell;
}

function fillCell(cell, node, path) {
  const nic = node.byPath.get(path);
  const state = nic ? stateOf(node, nic) : 'none';
  const now = nic && state !== 'away' ? carries(node.name, path) : undefined;
  const wide = (bits) => (now && now.capacity ? Math.min(1, bits / now.capacity) : 0);
  if (cell.state !== state) {
    cell.state = state;
    cell.element.className = 'cell is-' + state;
  }
  widen(cell.fillIn, now ? wide(now.receivedBitsPerSecond) : 0);
  widen(cell.fillOut, now ? wide(now.sentBitsPerSecond) : 0);
  const showsRates = now && (state === 'up' || state === 'partly');
  text(cell.inText, showsRates ? rate(now.receivedBitsPerSecond) : '');
  text(cell.outText, showsRates ? rate(now.sentBitsPerSecond) : '');
  let label = nic ? nic.interface || '' : '';
  if (nic && state !== 'up') label += (label ? ' · ' : '') + (state === 'partly' ? `${nic.peersAlive}/${nic.peersProbed} peers` : stateWords[state]);
  text(cell.nic, label);
  let words = nic ? sentence(node, path) : `${node.name}, ${path}: not on this path`;
  if (now) words += `, sends ${rate(now.sentBitsPerSecond)}, receives ${rate(now.receivedBitsPerSecond)}`;
  if (cell.words !== words) {
    cell.words = words;
    cell.element.setAttribute('aria-label', words);
  }
}

function widen(element, to) {
  const wanted = `scaleX(${to.toFixed(3)})`;
  if (element.wanted === wanted) return;
  element.wanted = wanted;
  element.style.transform = wanted;
}

const firstReports = 20;

// firstPicture notes when the map was seen first, for who measures.
function firstPicture() {
  if (performance.getEntriesByName('braid-first-picture').length) return;
  requestAnimationFrame(() => setTimeout(() => performance.mark('braid-first-picture')));
}

const newsWords = { Problem: 'wrong now', NIC: 'wrong now', Traffic: 'not spread', Remark: 'worth knowing', Warning: 'warning', Normal: 'event' };

function reportItem(one) {
  let object = one.object;
  if (one.node) object = el('a', { href: nodeLink(one.node) }, one.object);
  else if (one.pod) object = el('a', { href: podLink(one.namespace, one.pod) }, one.object);
  return el('li', { class: 'one is-' + one.type },
    el('div', { class: 'when' }, el('time', { datetime: one.time }, clock(one.time)), el('span', { class: 'chip' }, newsWords[one.type] || one.type)),
    el('div', {}, el('strong', {}, one.reason), ' ', object),
    el('div', { class: 'message' }, one.message + (one.count > 1 ? ` (${one.count} times)` : '')),
    one.remedy ? el('div', { class: 'remedy' }, 'What to do: ' + one.remedy) : null);
}
