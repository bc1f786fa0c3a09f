package consul_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

// A process takes a lock with a session, and writes while it holds the lock. After Bump, Consul refuses transactions
// with the former fence.
func Example() {
	server, err := consultest.Start("")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Stop()
	client, err := consul.New(consul.Config{Address: server.Addr})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()

	ctx, stop := context.WithCancel(context.Background())
	err = client.RunSession(ctx, consul.SessionConfig{Kind: "report", Name: "host-1"},
		func(ctx context.Context, s *consul.Session) error {
			defer stop()
			tries := 0
			value := func() []byte { tries++; return fmt.Appendf(nil, "%s, try %d", s.Incarnation, tries) }
			fence, err := client.Locks.Acquire(ctx, "report/lock", s.Releasing, value)
			if err != nil {
				return err
			}
			write := func(f consul.Fence) error {
				_, err := client.Commit(ctx, append(f.Ops(), consul.Set("report/monday", []byte("sent"))))
				return err
			}
			fmt.Println("written:", write(fence))
			next, err := client.Locks.Bump(ctx, fence, value)
			if err != nil {
				return err
			}
			fmt.Println("refused:", errors.Is(write(fence), consul.ErrRefused))
			fmt.Println("written:", write(next))
			return nil
		})
	fmt.Println("ended:", errors.Is(err, context.Canceled))
	// Output:
	// written: <nil>
	// refused: true
	// written: <nil>
	// ended: true
}
