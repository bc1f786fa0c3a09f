// Command scheduler is an example of a scheduler in its own process. It leaves out the nodes that operators have
// labelled keep-free. Among the nodes with the fewest pods of a controller, the farm takes the first by name. Start it,
// and start farms with --scheduler-url:
//
//	go run ./docs/examples/scheduler -listen 127.0.0.1:7470
//	rcctl dev --scheduler-url http://127.0.0.1:7470
//	rcctl label node n3 keep-free=yes
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/scheduler/remote"
)

// byName returns the eligible nodes in the order of their names. It keeps no books, because the nodes have
// reservations.
type byName struct{ scheduler.NoBooks }

// EligibleNodes implements scheduler.Scheduler.
func (byName) EligibleNodes(_ context.Context, v *scheduler.View) ([]string, scheduler.Reasons, error) {
	nodes, others := v.Eligible()
	var names []string
	for _, n := range nodes {
		if n.Label("keep-free") != "" {
			others["kept free"]++
			continue
		}
		names = append(names, n.Name())
	}
	log.Printf("%s with %d replicas asks for nodes: %v; others: %s", v.Ask().RCName, v.Ask().Desired, names, others)
	return names, others, nil
}

func main() {
	listen := flag.String("listen", "127.0.0.1:7470", "address")
	token := flag.String("token-file", "", "file with the token that farms must show; empty: none")
	flag.Parse()
	handler := remote.Handler(byName{})
	if *token != "" {
		handler = remote.WithToken(*token, handler)
	}
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("listening on %s", l.Addr())
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute}
	log.Fatal(server.Serve(l))
}
