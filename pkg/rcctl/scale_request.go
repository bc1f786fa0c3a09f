package rcctl

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/document"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/preparer/nodeapi"
	"github.com/rcfarm/rcfarm/pkg/scale"
)

func scaleRequestCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "scale-request", Usage: "say what a node runs of a service that it has for itself, without a farm",
		UsageText: "rcctl scale-request NODE -f FILE",
		Description: `Sends one request to the preparer of the node, which answers when the request is on its disk and has room: the
processes follow. The request is the whole assignment, what it leaves out stops; replicas: 0 stops all and forgets the
service. Without assignments indices 0 to replicas-1 run, in the role main. The spec may be left out once the node has
it; its manifest's id is the name of the service. Exit code 4: a controller's pod has that name on the node, there is no
room, or the request is older than the last. docs/local-services.md has the same for curl.

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
		Flags: []cli.Flag{fileFlag()},
		Action: offline(func(c *cli.Context, std *stdio) error {
			name, err := nodeName.only(c)
			if err != nil {
				return err
			}
			if c.String("file") == "" {
				return badFlag(c, "--file", "", "the name of a file, or - for standard input")
			}
			return runScaleRequest(c, std, name)
		}),
	})
}

func runScaleRequest(c *cli.Context, std *stdio, name string) error {
	r, err := readFile(c, c.String("file"), decodeRequest)
	if err != nil {
		return err
	}
	var client *nodeapi.Client
	err = withConn(c, std, func(s *conn) (err error) {
		client, err = nodeClient(c.Context, std, s, name)
		return err
	})
	if err != nil {
		return err
	}
	defer client.Close()
	answer, err := client.Scale(c.Context, r)
	if err != nil {
		return scaleRequestError(client, r.Service, err)
	}
	fmt.Fprintf(std.out, "node %s is to run %s of service %s now\nwatch: rcctl pods --node %s\n", name, field.Count(int(answer.Replicas), "replica"), clean(answer.Service), name)
	return nil
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
func scaleRequestError(client *nodeapi.Client, service string, err error) error {
	var refused *nodeapi.RefusedError
	if !errors.As(err, &refused) {
		return nodeError(client, err)
	}
	text := fmt.Sprintf("node %s, service %s: %s; nothing has changed", client.Node(), service, clean(refused.Answer.Message))
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
