// SPDX-License-Identifier: Apache-2.0

// A pod: what its traffic does and what to do about it, and its connections over time.

import { Chart, History, pathColour, spark } from './chart.js';
import { answer, el, nodeLink, plural, put, rate, text } from './dom.js';
import { carrier, subflowTable } from './node.js';
import { look, store } from './store.js';

const shownConnections = 20;
const explainAgain = 10000;

export class PodPage {
  constructor(main, namespace, name) {
    Object.assign(this, { namespace, name, history: new History(), each: new History(), sparks: new Map() });
    document.title = `Braid: pod ${namespace}/${name}`;
    this.where = el('p', { class: 'muted' });
    this.traffic = el('div', {}, el('p', { class: 'empty' }, 'Asking …'));
    this.chart = new Chart('What the pod’s subflows carry on each path, both directions', 220);
    this.chartNote = el('p', { class: 'empty' }, 'Measuring …');
    this.connections = el('div', {});
    this.decision = el('div', {});
    this.told = el('pre', { tabindex: '0', 'aria-label': 'What kubectl braid explain prints' });
    put(main, el('div', { class: 'page' },
      el('p', { class: 'crumbs' }, el('a', { href: '#/' }, 'Cluster'), ' / pod'), el('h1', {}, `${namespace}/${name}`), this.where, this.traffic,
      el('section', { 'aria-label': 'Paths over time' }, el('h2', {}, 'Paths over time'), this.chartNote, this.chart.element),
      el('section', { 'aria-label': 'Connections' }, el('h2', {}, 'Connections'), this.connections),
      el('section', { 'aria-label': 'Policy and paths' }, el('h2', {}, 'Policy and paths'), this.decision,
        el('details', {}, el('summary', {}, `kubectl braid explain ${name} --namespace ${namespace}`), this.told))));
    this.look();
    this.explain();
    this.update('subflows');
  }

  // look asks the agent of the pod's node, once that is known.
  look() { look(this.node ? [['of', this.node], ['namespace', this.namespace], ['pod', this.name]] : []); }

  end() {
    this.ended = true;
    clearTimeout(this.again);
    this.chart.end();
  }

  update(what) {
    if (what === 'subflows' && store.top) this.record();
    if (what === 'subflows' || what === 'theme' || what === 'problem') this.draw();
  }

  // explain asks anew from time to time, while somebody looks.
  async explain() {
    if (!document.hidden) {
      try {
        this.show(await answer('api/pod', { namespace: this.namespace, name: this.name }));
      } catch (error) {
        if (!this.ended) put(this.traffic, el('p', { class: 'banner bad' }, error.message));
      }
    }
    if (!this.ended) this.again = setTimeout(() => this.explain(), explainAgain);
  }

  show(found) {
    if (this.ended) return;
    const pod = found.decision.pod;
    if (this.node !== pod.node) {
      this.node = pod.node;
      this.look();
    }
    put(this.where, pod.node ? 'on ' : 'on no node yet', pod.node ? el('a', { href: nodeLink(pod.node) }, pod.node) : null, found.silent ? ': ' + found.silent : '');
    const is = found.traffic || (!found.silent && found.result && found.result.spreading) || {};
    const words = { Spread: 'Its traffic is spread over several paths', NotSpread: 'Its traffic is not spread', Unknown: 'What its traffic does is not known' };
    const kind = { Spread: 'ok', NotSpread: 'warn', Unknown: 'plain' }[is.state] || 'plain';
    let head = words[is.state] || 'Nobody has looked at its traffic yet';
    if (!found.decision.winner) head = 'No policy selects it: its connections are left alone';
    put(this.traffic, el('div', { class: 'banner ' + kind },
      el('strong', {}, head), is.state && is.state !== 'Spread' ? `: ${is.reason}` : '',
      is.message ? el('p', {}, is.message) : null, found.remedy ? el('p', {}, el('b', {}, 'What to do: '), found.remedy) : null,
      found.traffic && found.traffic.seconds ? el('p', { class: 'muted' }, `In the last ${Math.round(found.traffic.seconds)} s: ` +
        `${plural(found.traffic.connections, 'connection')} of MPTCP that moved bytes, ${found.traffic.plainConnections} of plain TCP`) : null,
      found.unknown ? el('p', { class: 'muted' }, 'What its connections do is not known: ' + found.unknown) : null));
    this.decide(found);
    text(this.told, found.told);
  }

  decide(found) {
    const decision = found.decision;
    const winner = decision.winner;
    const paths = (decision.paths || []).map((choice) => el('tr', {},
      el('td', {}, choice.path), el('td', {}, choice.used ? 'weight ' + choice.weight : 'not used'),
      el('td', { class: choice.notNow ? 'bad' : 'muted' }, choice.notNow ? 'not now: ' + choice.notNow : choice.reason)));
    put(this.decision,
      winner ? el('p', {}, `${winner.kind} ${winner.namespace ? winner.namespace + '/' : ''}${winner.name} decides: ${decision.winnerReason || ''}`) : el('p', { class: 'muted' }, decision.ignored || 'No policy selects it.'),
      paths.length ? el('div', { class: 'wide' }, el('table', {}, el('thead', {}, el('tr', {}, ['Path', 'Used', 'Why'].map((title) => el('th', { scope: 'col' }, title)))), el('tbody', {}, paths))) : null,
      found.leftOut && found.leftOut.length ? el('p', { class: 'muted' }, 'Left out, because you may not read it: ' + found.leftOut.join('; ')) : null);
  }

  record() {
    const sums = new Map();
    const each = new Map();
    for (const subflow of store.top.subflows) {
      const path = subflow.standIn || subflow.path || '';
      const bits = subflow.sentBitsPerSecond + subflow.receivedBitsPerSecond;
      sums.set(path, (sums.get(path) || 0) + bits);
      each.set(subflow.local + ' ' + subflow.remote, bits);
    }
    const now = Date.now() / 1000;
    this.history.add(now, sums);
    this.each.add(now, each);
  }

  draw() {
    const failed = store.problems.subflows || (store.top && (store.top.problems || []).map((problem) => problem.message)[0]);
    const has = this.history.lines.size > 0;
    this.chartNote.hidden = has && !failed;
    this.chartNote.className = failed ? 'banner warn' : 'empty';
    text(this.chartNote, failed ? 'What its subflows carry is not known: ' + failed : store.top ? 'It has no subflow now.' : 'Measuring …');
    this.chart.element.hidden = !has;
    if (has) {
      this.chart.draw(this.history, [...this.history.lines.keys()].sort().map((path) => ({ key: path, label: path || 'path not known', colour: pathColour(path) })));
    }
    this.drawConnections();
  }

  drawConnections() {
    if (!store.top) return;
    const connections = new Map();
    for (const subflow of store.top.subflows) {
      const key = subflow.token || subflow.local + ' ' + subflow.remote;
      if (!connections.has(key)) connections.set(key, []);
      connections.get(key).push(subflow);
    }
    if (!connections.size) {
      put(this.connections, el('p', { class: 'empty' }, 'It has no connection whose subflows are known.'));
      return;
    }
    const most = Math.max(1, ...[...this.each.lines.values()].flat());
    const shown = [...connections].slice(0, shownConnections).map(([token, subflows]) => this.connection(token, subflows, most));
    if (connections.size > shown.length) shown.push(el('p', { class: 'muted' }, `and ${connections.size - shown.length} more: kubectl braid top ${this.name} --namespace ${this.namespace}`));
    if (store.top.total > store.top.subflows.length) shown.push(el('p', { class: 'muted' }, `${store.top.subflows.length} of ${store.top.total} subflows are shown, the busiest.`));
    put(this.connections, shown);
  }

  connection(token, subflows, most) {
    const sum = (name) => subflows.reduce((all, subflow) => all + subflow[name], 0);
    const peer = subflows[0].peer || subflows[0].remote;
    const paths = new Set(subflows.map(carrier));
    return el('article', { class: 'connection' },
      el('h3', {}, 'with ' + peer, el('span', { class: 'muted' }, ` ${plural(subflows.length, 'subflow')} on ${plural(paths.size, 'path')} · ` +
        `${rate(sum('sentBitsPerSecond'))} sent, ${rate(sum('receivedBitsPerSecond'))} received${token.startsWith('0x') ? ' · token ' + token : ''}`)),
      subflowTable(subflows, false, (subflow) => this.spark(subflow, most)));
  }

  spark(subflow, most) {
    const key = subflow.local + ' ' + subflow.remote;
    if (!this.sparks.has(key)) this.sparks.set(key, el('canvas', { class: 'spark', 'aria-hidden': 'true' }));
    const canvas = this.sparks.get(key);
    spark(canvas, this.each.lines.get(key) || [], pathColour(subflow.standIn || subflow.path), most);
    return canvas;
  }
}
