// SPDX-License-Identifier: Apache-2.0

// A node: its NICs over time, its pods, and what its busiest subflows do.

import { Chart, History, colour } from './chart.js';
import { answer, el, microseconds, plural, podLink, put, rate, share, text } from './dom.js';
import { Rows } from './rows.js';
import { carries, look, sentence, stateOf, stateWords, store } from './store.js';

const shownSubflows = 20;

export class NodePage {
  constructor(main, name) {
    this.name = name;
    this.cards = new Map();
    this.pods = [];
    this.matching = [];
    document.title = 'Braid: node ' + name;
    this.state = el('div', { class: 'facts' });
    this.nics = el('div', { class: 'cards' });
    this.filter = el('input', { type: 'search', placeholder: 'Filter pods', 'aria-label': 'Filter pods', oninput: () => this.list() });
    this.podCount = el('span', { class: 'muted' });
    this.table = el('div', { class: 'grid pods', role: 'table', 'aria-label': 'Pods', tabindex: '0' },
      el('div', { class: 'row head', role: 'row' }, ['Pod', 'Policy', 'Traffic', 'State'].map((title) => el('div', { role: 'columnheader' }, title))));
    this.noPods = el('p', { class: 'empty', hidden: true });
    this.busy = el('div', {});
    put(main, el('div', { class: 'page' },
      el('p', { class: 'crumbs' }, el('a', { href: '#/' }, 'Cluster'), ' / node'), el('h1', {}, name), this.state,
      el('section', { 'aria-label': 'NICs' }, el('h2', {}, 'NICs'), this.nics),
      el('section', { 'aria-label': 'Pods' }, el('div', { class: 'tools' }, el('h2', {}, 'Pods that a policy selects'), this.podCount, this.filter), this.noPods, this.table),
      el('section', { 'aria-label': 'Busiest subflows' }, el('h2', {}, 'Busiest subflows'), this.busy)));
    this.rows = new Rows({ scroller: this.table, height: 38, header: 36, make: makePod, fill: (row, i) => fillPod(row, this.matching[i]) });
    this.look();
    this.update('state');
    this.update('subflows');
  }

  look() { look([['node', this.name], ['of', this.name]]); }

  end() {
    this.rows.end();
    clearTimeout(this.again);
    for (const card of this.cards.values()) card.chart.end();
  }

  update(what) {
    const node = store.nodes.get(this.name);
    if (what === 'state') {
      this.facts(node);
      this.readPods();
    }
    if (what === 'state' || what === 'theme') this.drawNICs(node);
    if (what === 'nics') {
      this.record(node);
      this.drawNICs(node);
    }
    if (what === 'subflows' || what === 'problem') this.subflows();
  }

  facts(node) {
    if (!node) {
      put(this.state, el('p', { class: 'empty' }, store.head ? 'There is no such node, or you may not read its NICs.' : 'Reading the cluster …'));
      return;
    }
    const facts = [node.kernel && 'Linux ' + node.kernel, node.agent && 'agent ' + node.agent,
      ...(node.tunnels || []).map((tunnel) => `${tunnel.device}: ${tunnel.kind}, ${tunnel.steered ? 'steered' : 'not steered'}`)].filter(Boolean);
    put(this.state, facts.length ? el('p', { class: 'muted' }, facts.join(' · ')) : null,
      node.noAgent ? el('p', { class: 'banner warn' }, 'No agent has run here: its pods’ connections are left alone.') : null,
      node.problem ? el('p', { class: 'banner bad' }, node.problem) : null);
  }

  record(node) {
    if (!node) return;
    for (const nic of node.nics) {
      const now = carries(this.name, nic.name);
      if (now) this.card(nic.name).history.add(Date.now() / 1000, new Map([['sent', now.sentBitsPerSecond], ['received', now.receivedBitsPerSecond]]));
    }
  }

  card(path) {
    let card = this.cards.get(path);
    if (!card) {
      card = { history: new History(), chart: new Chart('What the NIC of ' + path + ' carries', 150), title: el('h3', {}), state: el('p', {}), now: el('p', { class: 'muted' }) };
      card.element = el('article', { class: 'card' }, card.title, card.state, card.chart.element, card.now);
      this.cards.set(path, card);
    }
    return card;
  }

  drawNICs(node) {
    if (!node) return;
    if (!node.nics.length) put(this.nics, el('p', { class: 'empty' }, 'It has no NIC on a path.'));
    const cards = node.nics.map((nic) => this.card(nic.name).element);
    if (node.nics.length && cards.some((card, i) => this.nics.children[i] !== card)) put(this.nics, cards);
    for (const nic of node.nics) {
      const card = this.card(nic.name);
      const state = stateOf(node, nic);
      const now = state === 'away' ? undefined : carries(this.name, nic.name);
      put(card.title, nic.name, ' ', el('span', { class: 'muted' }, [nic.interface, ...(nic.addresses || [])].filter(Boolean).join(' · ')));
      put(card.state, el('span', { class: 'state is-' + state }, stateWords[state]), ' ' + sentence(node, nic.name).split(stateWords[state]).slice(1).join(stateWords[state]).replace(/^[:,] /, ''));
      card.chart.draw(card.history, [
        { key: 'sent', label: 'sent', colour: colour('out'), filled: true }, { key: 'received', label: 'received', colour: colour('in'), filled: true },
      ]);
      if (state === 'away') card.history = new History();
      let words = store.unread.has(this.name) ? 'What it carries is not known: ' + store.unread.get(this.name) : store.agents ? store.agents : 'Measuring …';
      if (now) {
        words = (now.capacity ? `${share(now.sentBitsPerSecond, now.capacity)} and ${share(now.receivedBitsPerSecond, now.capacity)} of ${rate(now.capacity)}; ` : '') +
          `${plural(now.subflows, 'subflow')} of selected pods: ${rate(now.subflowsSentBitsPerSecond)} sent, ${rate(now.subflowsReceivedBitsPerSecond)} received`;
      }
      text(card.now, words);
    }
  }

  async readPods() {
    clearTimeout(this.again);
    this.again = setTimeout(async () => {
      try {
        const found = await answer('api/node', { name: this.name });
        this.pods = found.pods;
        const left = (found.leftOut || []).filter((what) => what.startsWith('MPTCPNodePlans'));
        this.noPods.hidden = this.pods.length > 0;
        text(this.noPods, left.length ? 'Left out, because you may not read it: ' + left[0] : 'No policy selects a pod here.');
        this.list();
      } catch (error) {
        this.noPods.hidden = false;
        text(this.noPods, error.message);
      }
    }, this.pods.length ? 1000 : 0);
  }

  list() {
    const wanted = this.filter.value.toLowerCase();
    this.matching = this.pods.filter((pod) => (pod.namespace + '/' + pod.name).toLowerCase().includes(wanted));
    text(this.podCount, plural(this.matching.length, 'pod'));
    this.table.hidden = !this.pods.length;
    this.table.setAttribute('aria-rowcount', String(this.matching.length + 1));
    this.table.style.height = 40 + 38 * Math.max(1, this.matching.length) + 'px';
    this.rows.setCount(this.matching.length);
    this.rows.refresh();
  }

  subflows() {
    if (store.problems.subflows) return put(this.busy, el('p', { class: 'banner warn' }, store.problems.subflows));
    if (!store.top) return put(this.busy, el('p', { class: 'empty' }, 'Measuring …'));
    const problem = (store.top.problems || [])[0];
    if (problem) return put(this.busy, el('p', { class: 'banner warn' }, problem.message));
    const shown = store.top.subflows.slice(0, shownSubflows);
    if (!shown.length) return put(this.busy, el('p', { class: 'empty' }, 'No pod here that a policy selects has a subflow.'));
    return put(this.busy, subflowTable(shown, true),
      store.top.total > shown.length ? el('p', { class: 'muted' }, `${shown.length} of ${store.top.total} subflows: kubectl braid top --node ${this.name}`) : null);
  }
}

function makePod() {
  const row = el('div', { class: 'row', role: 'row' });
  row.link = el('a', {});
  row.columns = [el('div', { role: 'cell' }, row.link), el('div', { role: 'cell' }), el('div', { role: 'cell' }), el('div', { role: 'cell' })];
  row.append(...row.columns);
  return row;
}

function fillPod(row, pod) {
  if (!pod) return;
  text(row.link, (pod.vm ? 'VM ' : '') + pod.namespace + '/' + pod.name);
  row.link.href = podLink(pod.namespace, pod.name);
  text(row.columns[1], pod.policy || '–');
  const traffic = { Spread: 'spread', NotSpread: 'not spread: ' + pod.reason, Unknown: 'unknown: ' + pod.reason };
  text(row.columns[2], traffic[pod.spreading] || '–');
  row.columns[2].className = pod.spreading === 'NotSpread' ? 'warn' : pod.spreading === 'Spread' ? 'ok' : 'muted';
  text(row.columns[3], pod.problem || 'programmed');
  row.columns[3].className = pod.problem ? 'bad' : 'muted';
  row.columns[3].title = pod.problem || '';
}

// carrier is the path that the packets take.
export function carrier(subflow) {
  return subflow.standIn ? `${subflow.standIn}, not ${subflow.path}` : subflow.path || '–';
}

export function subflowTable(subflows, withPod, cells) {
  const titles = [withPod && 'Pod', 'Peer', 'Path', 'Sent', 'Received', 'RTT', 'Backup', cells && 'Last two minutes'].filter(Boolean);
  return el('div', { class: 'wide' }, el('table', {}, el('thead', {}, el('tr', {}, titles.map((title) => el('th', { scope: 'col' }, title)))),
    el('tbody', {}, subflows.map((subflow) => {
      const [namespace, name] = subflow.pod.split('/');
      return el('tr', {},
        withPod && el('td', {}, el('a', { href: podLink(namespace, name) }, subflow.pod)),
        el('td', {}, subflow.peer ? `${subflow.peer}:${subflow.remote.split(':').at(-1)}` : subflow.remote), el('td', {}, carrier(subflow)),
        el('td', { class: 'number' }, rate(subflow.sentBitsPerSecond)), el('td', { class: 'number' }, rate(subflow.receivedBitsPerSecond)),
        el('td', { class: 'number' }, microseconds(subflow.rttMicroseconds)), el('td', {}, subflow.backup ? 'backup' : '–'),
        cells && el('td', {}, cells(subflow)));
    }))));
}
