#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes a site of README.md and docs/ in _out/site, by MkDocs and its theme Material. They
# are installed into the cache, once for each requirements.txt, which pins them by their sums:
#
#   pip-compile --generate-hashes --strip-extras --no-header requirements.in
#
# Material is kept up until May 2027. Its successor Zensical reads the same mkdocs.yml; its
# release 0.1.2 could not be installed, as a part of it (zensical-ui) is not on PyPI.
#
# With --serve it is then served at 127.0.0.1:8000: the search needs a server.
#
# Fails on a link or an anchor that leads nowhere, and on a page that is on no shelf.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

who=docs
requirements=$PWD/hack/site/requirements.txt
cache=${XDG_CACHE_HOME:-$HOME/.cache}/braid/site
tools=$cache/$(sha256sum "$requirements" | cut -c 1-16)
work=_out/site-source

# shellcheck source=hack/progress.sh
source hack/progress.sh

install() {
	python3 -m venv "$tools.new"
	"$tools.new/bin/python" -m pip --quiet --disable-pip-version-check install --require-hashes --only-binary :all: --requirement "$requirements"
}

# tools installs MkDocs where it is not in the cache.
tools() {
	[[ ! -e $tools/bin/python ]] || return 0
	mkdir -p "$cache"
	lock "$cache/.lock"
	[[ ! -e $tools/bin/python ]] || return 0
	trap end EXIT
	trap 'exit 130' INT TERM HUP
	say "installing MkDocs, once"
	rm -rf "$tools.new"
	run "installing MkDocs" 600 install
	mv "$tools.new" "$tools"
}

# linked are the files outside of docs/ that pages link to.
linked() {
	grep -ohE '\]\((\.\./|bpf/)[^)#]+' README.md docs/*.md | sed -E 's/^\]\((\.\.\/)?//' | sort -u
}

# nav prints the shelves of docs/README.md as MkDocs wants them.
nav() {
	echo "nav:"
	echo "  - Braid: [README.md, docs/README.md]"
	awk '/^## / { print "  - " substr($0, 4) ":" }
		match($0, /^\| \[[^]]*\]\(/) { page = substr($0, RLENGTH + 1); sub(/\).*/, "", page); print "      - docs/" page }' docs/README.md
}

main() {
	if ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
		say "this needs Python with venv: on Debian and Ubuntu, apt-get install python3-venv"
		exit 1
	fi
	tools
	rm -rf "$work"
	mkdir -p "$work/pages"
	cp README.md "$work/pages"
	cp -r docs "$work/pages"
	linked | xargs -r -d '\n' cp --parents -t "$work/pages"
	{ cat hack/site/mkdocs.yml && nav; } >"$work/mkdocs.yml"
	# The environment's scripts name the directory that it was made in; -m does not.
	# NO_MKDOCS_2_WARNING: see above.
	NO_MKDOCS_2_WARNING=1 "$tools/bin/python" -m mkdocs build --strict --config-file "$work/mkdocs.yml" --site-dir "$PWD/_out/site"
	say "made: _out/site/index.html; for the search, make docs ARGS=--serve"
}

main
if [[ ${1:-} == --serve ]]; then
	say "serving it at http://127.0.0.1:8000, until you press Ctrl-C"
	exec python3 -m http.server --bind 127.0.0.1 --directory _out/site 8000
fi
