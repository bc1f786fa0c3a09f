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
	return leaf("scale-request NODE -f FILE",
		"set what a node runs of a local service, without a farm",
		`Sends one request to the preparer of the node. The preparer answers when it has written the request to its
disk and reserved capacity; it starts and stops processes after that. The request is the whole assignment: replicas
that it leaves out stop, and replicas: 0 stops all. Without assignments, indices 0 to replicas-1 run, in the role main.
You may leave out the spec once the node has it, even if the service has stopped; its manifest's id is the name of the
service. Exit code 4: a controller's pod has that name on the node, capacity is missing, or the request is older than
the last. rcctl audit shows who sent it, and the node's answer. docs/local-services.md has the same for curl.

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
		onConn(readScaleRequest, runScaleRequest), fileFlag(),
	)
}

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
	answered := s.auditRequest(s.Context, r.node, r.Request)
	answer, err := client.Scale(s.Context, r.Request)
	if err != nil {
		answered(err.Error())
		return scaleRequestError(client, &r.Request, err)
	}
	replicas := field.Count(int(answer.Replicas), "replica")
	answered("accepted, it will run " + replicas)
	s.printLine("node %s will run %s of service %s\nwatch: rcctl pods --node %s",
		r.node, replicas, clean(answer.Service), r.node)
	return nil
}

// auditRequest writes the audit record before the request is sent, so there is a record however the command ends.
// answered adds the node's answer. If the record cannot be written, auditRequest only prints a note, because operators
// must be able to change local services even if Consul accepts no writes.
func (s *conn) auditRequest(ctx context.Context, name string, r scale.Request) (answered func(how string)) {
	by, err := s.who(ctx)
	line, rcID := requestText(name, r)
	a := store.NewAudit(by, "scale-request", rcID, []string{line}).OnNodes(name)
	if err == nil {
		err = s.Operator.Record(ctx, a)
	}
	if err != nil {
		s.note("the audit record of this request could not be written: %v", err)
		return func(string) {}
	}
	return func(how string) {
		a.Changes = append(a.Changes, field.Cut("node "+name+" answers: "+how, store.MaxAuditLine))
		if err := s.Operator.Record(ctx, a); err != nil {
			s.note("the node's answer could not be added to the audit record of this request: %v", err)
		}
	}
}

// requestText also returns the controller id for the audit record, which is pod.LocalRC for a local service.
func requestText(node string, r scale.Request) (line, rcID string) {
	if e := r.Epoch; e != nil {
		return fmt.Sprintf("node %s, service %s: read intents up to index %d, epoch %s, term %s",
			node, r.Service, r.Revision, e.Cluster, e.Term), e.RCID
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
	return field.Cut(fmt.Sprintf("%s: run %s: %s", line, field.Count(len(names), "replica"),
		cmp.Or(strings.Join(names, " "), "none")), store.MaxAuditLine), pod.LocalRC(r.Service)
}

func manifestText(spec *scale.Spec) string {
	if spec == nil {
		return "the manifest that the node has"
	}
	var canonical []byte
	m, err := manifest.Decode(spec.Manifest)
	if err == nil {
		canonical, err = m.Canonical()
	}
	if err != nil {
		return "a manifest that cannot be read"
	}
	return "manifest " + manifest.Digest(canonical)
}

func decodeRequest(_ string, data []byte) (scale.Request, error) {
	converted, err := document.ToJSON(data, "one scale request, in YAML or JSON")
	if err != nil {
		return scale.Request{}, err
	}
	return scale.Decode(bytes.NewReader(converted))
}

func scaleRequestError(client *nodeapi.Client, r *scale.Request, err error) error {
	var refused *nodeapi.RefusedError
	if !errors.As(err, &refused) {
		return nodeError(client, err)
	}
	follows := "nothing has changed"
	if r.Epoch != nil && refused.Status == http.StatusInternalServerError {
		follows = "the node may have read its intents all the same" // the node reads before it records the request
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
