package rcctl

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func applyCommand() *cli.Command {
	return leaf("apply -f FILE [--signature FILE | --sign-key KEY] [--dry-run] [--wait [--timeout 5m]] "+
		"[--allow-mass-stop]",
		"create the rc that a document describes, or change it to that",
		`Reads one YAML or JSON document, and creates the rc of that name or changes it to what the document asks for.
rcctl checks everything before it writes anything. A document that changes nothing writes nothing. A changed pod is
rolled out in place, one pod at a time. An rc that is a revision of a service is not changed (exit code 4); rcctl
deploy changes the service. --wait ends at once, with exit code 5, if the rc is blocked, if its pods end again and
again, or if trying again does not help them: an artifact is missing or has another digest, for example.

Examples:
  rcctl apply -f rc.yaml                  change it and return
  rcctl apply -f rc.yaml --dry-run        only show what it would change; exit code 6 if something
  rcctl apply -f rc.yaml --wait           wait until as many pods are available as it asks for
  sed s/v1/v2/ rc.yaml | rcctl apply -f - read standard input

A document, with the fields that are used most; docs/controller.md has all of them:
  name: web
  replicas: 3
  min_available: 2              # by default one less than the replicas
  max_per_node: 1               # by default there is no limit
  strategy: dynamic             # pods may move; static: they stay where they are
  node_selector: rack in (a,b)
  spread: rack
  pod:
    version: 1
    id: web
    launchables:
    - name: server
      artifact: {kind: tar, url: "https://files.example/web.tar.gz", sha256: 64 hex digits}
    ports:
    - {name: http, port: 8080}
    health:
      http: {port: http, path: /health}`,
		func(c *cli.Context) error {
			if c.Bool("dry-run") {
				return onConn(readSpec, dryRun)(c)
			}
			return onConn(readApply, runApply)(c)
		},
		signatureFlags(), fileFlag(), massStopFlag(),
		toggle("dry-run", "write nothing, and show what would change (exit code 6 if something would)"),
		waitFlags("until the rc has converged"),
	)
}

func createCommand() *cli.Command {
	return leaf("create -f FILE [--signature FILE | --sign-key KEY] [--wait [--timeout 5m]]",
		"create an rc; refuse if the name is taken",
		`Like rcctl apply, but an rc of that name must not exist (exit code 4).

Examples:
  rcctl rc create -f rc.yaml
  rcctl rc create -f - < rc.yaml`,
		onConn(readCreate, runApply), signatureFlags(), fileFlag(), waitFlags("until the rc has converged"),
	)
}

func readApply(c *cli.Context) (w applyRequest, err error) {
	w.massStop = c.Bool("allow-mass-stop")
	if w.spec, err = readSpec(c); err == nil {
		w.signatures, err = signaturesOf(c, manifestsOf(w.spec))
	}
	return w, err
}

func readCreate(c *cli.Context) (applyRequest, error) {
	w, err := readApply(c)
	w.create = true
	return w, err
}

func runApply(s *conn, w applyRequest) error {
	s.warnOf(w.spec.Pod) // a group's manifest has the same ports and users
	done, err := writeApply(s.Context, s, w)
	if err != nil {
		return err
	}
	verb := "changed"
	if done.what == "create" {
		verb = "created"
	}
	printChange(s.stdio, done, verb)
	s.warnAbout(&done)
	return waitOrHint(s, &done)
}

func writeApply(ctx context.Context, s *conn, w applyRequest) (done change, err error) {
	id := store.NewID() // the same in every try, so that we find a creation whose outcome was unknown
	digests, _, err := rc.Manifests(w.spec.Pod, w.spec.ReplicaGroups)
	if err != nil {
		return done, err
	}
	err = s.writing(ctx, maxTries, func(ctx context.Context, by string) error {
		if err := s.ensureSchema(ctx); err != nil {
			return err
		}
		cur, index, err := readCurrent(ctx, s, w.spec.Name)
		switch {
		case err != nil:
			return err
		case cur.rc != nil && w.create:
			return cur.refuseCreate(s.String("file"))
		}
		if err := cur.readStored(ctx, s, digests); err != nil {
			return err
		}
		if done, err = computeApply(w, cur, id); err != nil {
			return err
		}
		return s.commit(ctx, &done, index, by)
	})
	return done, err
}

func (c *current) refuseCreate(file string) error {
	change := "to change it: rcctl apply -f " + file
	if of := c.rc.Service; c.service != nil {
		change = fmt.Sprintf("it is revision %d of service %s: rcctl deploy -f FILE", of.Revision, of.Name)
	}
	return refusedf("rc %s exists (id %s, generation %d), nothing was written; %s",
		c.rc.Name, c.rc.ID, c.rc.Generation, change)
}
