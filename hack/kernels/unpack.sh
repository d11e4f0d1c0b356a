# SPDX-License-Identifier: Apache-2.0
#
# Unpacks programs of Debian's packages with what they need, without installing any of it. To
# be sourced behind apt.sh, after use_suites; work is a directory.

# unpack SUITE PACKAGE… unpacks packages, with all that they depend on, into $work/all.
unpack() {
	local suite=$1 package
	shift
	mkdir -p "$work/debs/partial" "$work/all" "$work/dpkg"
	# With no package taken for installed, all that they depend on comes along. apt's lock is
	# beside that list: one of its own, for several may unpack at once.
	: >"$work/dpkg/status"
	apt_of_suites apt-get -q -o Dir::State::status="$work/dpkg/status" -o Dir::Cache::archives="$work/debs" \
		install --download-only --yes --no-install-recommends -t "$suite" "$@" >&2
	for package in "$work"/debs/*.deb; do
		dpkg-deb --extract "$package" "$work/all"
	done
}

# find_loader prints the loader of unpacked programs.
find_loader() {
	(cd "$work/all" && find . -name 'ld-linux-x86-64.so.2' | head -n 1 | cut -c 2-)
}

# take FILE… copies files to $work/root, and the libraries that programs among them load by
# $loader.
take() {
	local file
	for file in "$@"; do
		(cd "$work/all" && cp --parents --dereference ".$file" "$work/root")
		[[ $file == */*bin/* ]] || continue
		chroot "$work/all" "$loader" --list "$file" | awk '$2 == "=>" { print $3 }' | while read -r library; do
			(cd "$work/all" && cp --parents --dereference --no-clobber ".$library" "$work/root")
		done
	done
}
