// SPDX-License-Identifier: Apache-2.0

// Command etcd is the upstream server behind a main package of our own,
// because the module proxy serves its code and not its binaries.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
