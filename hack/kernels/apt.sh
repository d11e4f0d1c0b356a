# SPDX-License-Identifier: Apache-2.0
#
# Asks this machine's own mirror of Debian for suites that the machine does not
# use. To be sourced; say must be there.

# mirror prints the address of Debian's packages, from this machine's own sources.
mirror() {
	local address=${BRAID_DEBIAN_MIRROR:-}
	[[ -n $address ]] || address=$(apt-get indextargets --format '$(REPO_URI) $(ORIGIN) $(LABEL)' |
		awk '$2 == "Debian" && $3 == "Debian" { print $1; exit }')
	if [[ -z $address ]]; then
		say "this machine's apt has no packages of Debian: name a mirror in BRAID_DEBIAN_MIRROR"
		return 1
	fi
	echo "$address"
}

# use_suites DIRECTORY SUITE… prepares lists of these suites alone.
use_suites() {
	local directory=$1 address
	address=$(mirror)
	shift
	mkdir -p "$directory/lists/partial" "$directory/cache/archives/partial"
	cat >"$directory/debian.sources" <<-END
		Types: deb
		URIs: $address
		Suites: $*
		Components: main
		Architectures: amd64
		Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
	END
	suites=(-o "Dir::Etc::SourceList=$directory/debian.sources" -o Dir::Etc::SourceParts=/dev/null
		-o "Dir::State::Lists=$directory/lists" -o "Dir::Cache=$directory/cache" -o Acquire::Languages=none)
	apt_of_suites apt-get -q update >&2
}

# apt_of_suites COMMAND ARGUMENT… runs one of apt's commands with these suites.
apt_of_suites() {
	local command=$1
	shift
	"$command" "${suites[@]}" "$@"
}
