package election_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/election"
)

// A process takes part in an election until it has led once.
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
			candidate := election.Candidate{
				Client: client, Session: s, Lease: "report", ID: "host-1",
				BinaryVersion: "1.19.0",
			}
			return election.Run(ctx, candidate, func(leaderCtx context.Context) error {
				// If another candidate leads meanwhile, Consul refuses this, even if this process does not know it yet.
				_, err := election.Commit(leaderCtx,
					[]consul.Op{consul.CAS("report/monday", []byte("sent by host-1"), 0)})
				fmt.Println("written:", err)
				stop()
				<-leaderCtx.Done()
				return context.Cause(leaderCtx)
			})
		})
	fmt.Println("ended:", errors.Is(err, context.Canceled))
	// Output:
	// written: <nil>
	// ended: true
}
