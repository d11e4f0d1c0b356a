// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"time"
)

// Serve relays those whom the agent names in the directory. When the context ends it relays
// nothing new, and lets what is relayed go on for the grace period.
func Serve(ctx context.Context, options Options, directory string, grace time.Duration) error {
	p, err := Open(options)
	if err != nil {
		return err
	}
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	ran := make(chan error, 1)
	go func() { ran <- p.Run(working) }()
	followed := p.Follow(ctx, directory)
	left, end := context.WithTimeout(working, grace)
	defer end()
	options.Log.Info("Relaying nothing new", "connections", p.Connections())
	if err := p.Drain(left); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		followed = errors.Join(followed, err)
	}
	stop()
	return errors.Join(followed, <-ran, p.Close())
}
