package rcctl

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/document"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/nodeapi"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scale"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func scaleRequestCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "scale-request", Usage: "say what a node runs of a service that it has for itself, without a farm",
		UsageText: "rcctl scale-request NODE -f FILE",
		Description: `Sends one request to the preparer of the node, which answers when the request is on its disk and has room: the
processes follow. The request is the whole assignment, what it leaves out stops; replicas: 0 stops all. Without
assignments indices 0 to replicas-1 run, in the role main. The spec may be left out once the node has it, also when the
service has stopped; its manifest's id is the name of the service. Exit code 4: a controller's pod has that name on the
node, there is no room, or the request is older than the last. rcctl audit shows who asked, and what the node answered.
docs/local-services.md has the same for curl.

A document:
  service: agent
  replicas: 2
  spec:
    manifest:
      version: 1
      id: agent
      launchables:
      - name: main
        artifact: {kind: exec, path: /usr/local/bin/agent}

Examples:
  rcctl scale-request node-17 -f agent.yaml
  echo '{"service":"agent","replicas":0}' | rcctl scale-request node-17 -f -`,
		Flags:  []cli.Flag{fileFlag()},
		Action: onConn(readScaleRequest, runScaleRequest),
	})
}

// nodeRequest is a request to a node.
type nodeRequest struct {
	node string
	scale.Request
}

func readScaleRequest(c *cli.Context) (r nodeRequest, err error) {
	if r.node, err = nodeName.only(c); err != nil {
		return r, err
	}
	if c.String("file") == "" {
		return r, badFlag(c, "--file", "", "the name of a file, or - for standard input")
	}
	r.Request, err = readFile(c, c.String("file"), decodeRequest)
	return r, err
}

func runScaleRequest(s *conn, r nodeRequest) error {
	client, err := nodeClient(s.Context, s, r.node)
	if err != nil {
		return err
	}
	defer client.Close()
	answered := s.asks(s.Context, r.node, r.Request)
	answer, err := client.Scale(s.Context, r.Request)
	if err != nil {
		answered(err.Error())
		return scaleRequestError(client, &r.Request, err)
	}
	replicas := field.Count(int(answer.Replicas), "replica")
	answered("taken, it is to run " + replicas)
	fmt.Fprintf(s.out, "node %s is to run %s of service %s now\nwatch: rcctl pods --node %s\n", r.node, replicas, clean(answer.Service), r.node)
	return nil
}

// asks leaves an audit record of a request before it is sent, so that there is one however the command ends, and returns what adds the node's answer
// to it. A node's own services are looked after also where Consul takes no writes, or none from this token: then it says so, and goes on.
func (s *conn) asks(ctx context.Context, name string, r scale.Request) (answered func(how string)) {
	by, err := s.who(ctx)
	line, rcID := requestText(name, r)
	a := store.NewAudit(by, "scale-request", rcID, []string{line}).OnNodes(name)
	if err == nil {
		err = s.Operator.Record(ctx, a)
	}
	if err != nil {
		fmt.Fprintf(s.err, "rcctl: no audit record is left of this: %v\n", err)
		return func(string) {}
	}
	return func(how string) {
		a.Changes = append(a.Changes, field.Cut("node "+name+" answers: "+how, store.MaxAuditLine))
		if err := s.Operator.Record(ctx, a); err != nil {
			fmt.Fprintf(s.err, "rcctl: the audit record of this lacks the node's answer: %v\n", err)
		}
	}
}

// requestText says for the record what a request asks for, and under which id: the controller's, or what stands in its place for a local service.
func requestText(node string, r scale.Request) (line, rcID string) {
	if e := r.Epoch; e != nil {
		return fmt.Sprintf("node %s, service %s: read intents up to index %d, epoch %s, term %s", node, r.Service, r.Revision, e.Cluster, e.Term), e.RCID
	}
	var names []string
	for _, a := range r.Assigned() {
		role := a.Role
		if role == scale.DefaultGroup {
			role = rc.DefaultRole
		}
		for _, index := range a.Indices {
			names = append(names, fmt.Sprintf("%s.%d", role, index))
		}
	}
	line = fmt.Sprintf("node %s, local service %s, %s", node, r.Service, manifestText(r.Spec))
	return field.Cut(fmt.Sprintf("%s: run %s: %s", line, field.Count(len(names), "replica"), cmp.Or(strings.Join(names, " "), "none")), store.MaxAuditLine), pod.LocalRC(r.Service)
}

// manifestText says which manifest a request brings.
func manifestText(spec *scale.Spec) string {
	if spec == nil {
		return "the manifest that the node has"
	}
	m, err := manifest.Decode(spec.Manifest)
	if err != nil {
		return "a manifest that cannot be read"
	}
	canonical, err := m.Canonical()
	if err != nil {
		return "a manifest that cannot be read"
	}
	return "manifest " + manifest.Digest(canonical)
}

// decodeRequest reads a request, as YAML or as JSON.
func decodeRequest(_ string, data []byte) (scale.Request, error) {
	converted, err := document.ToJSON(data, "one scale request, in YAML or JSON")
	if err != nil {
		return scale.Request{}, err
	}
	return scale.Decode(bytes.NewReader(converted))
}

// scaleRequestError says what a node's refusal means to whoever typed the command.
func scaleRequestError(client *nodeapi.Client, r *scale.Request, err error) error {
	var refused *nodeapi.RefusedError
	if !errors.As(err, &refused) {
		return nodeError(client, err)
	}
	follows := "nothing has changed"
	if r.Epoch != nil && refused.Status == http.StatusInternalServerError {
		follows = "the node may have read its intents all the same" // it acts on them before it notes the request
	}
	text := fmt.Sprintf("node %s, service %s: %s; %s", client.Node(), r.Service, clean(refused.Answer.Message), follows)
	switch refused.Status {
	case http.StatusBadRequest:
		return &codedError{code: exitUsage, text: text}
	case http.StatusNotFound:
		return notFoundf("%s", text)
	case http.StatusConflict:
		return refusedf("%s", text)
	default:
		return awayf("%s", text)
	}
}
