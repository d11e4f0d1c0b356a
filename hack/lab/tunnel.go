// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"braid.dev/braid/internal/lab/network"
)

// tunnel is the HTTP proxy by which the API server, which is outside, reaches
// kubelets and pods: it connects from inside the node that has the address, or
// from the first one, which has routes to all pods.
func tunnel(wanted forwarding) error {
	listener, err := net.Listen("unix", wanted.Tunnel)
	if err != nil {
		return fmt.Errorf("listening for the API server: %w", err)
	}
	for {
		connection, err := listener.Accept()
		if err != nil {
			return fmt.Errorf("accepting the API server's connection: %w", err)
		}
		go wanted.connect(connection)
	}
}

func (f forwarding) connect(from net.Conn) {
	defer from.Close()
	reader := bufio.NewReader(from)
	request, err := http.ReadRequest(reader)
	if err != nil || request.Method != http.MethodConnect {
		return
	}
	to, err := f.dial(request.Host)
	if err != nil {
		fmt.Fprintf(from, "HTTP/1.1 502 Bad Gateway\r\n\r\n%v\n", err)
		return
	}
	defer to.Close()
	fmt.Fprint(from, "HTTP/1.1 200 Connection established\r\n\r\n")
	join(reader, from, to)
}

func (f forwarding) dial(address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("reading %q: %w", address, err)
	}
	name, known := f.Nodes[host]
	if !known {
		name = f.Namespaces[0]
	}
	namespace, err := network.Open(name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return namespace.Dial(ctx, "tcp", address)
}
