package rcctl

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/preparer/nodeapi"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// Each row of the table of exit codes in docs/deploying.md is true for each command of that page to which the row
// applies. Two cases are in end-to-end scenarios: an answer other than yes, which needs a terminal (deploy-terminal),
// and a stale plan (stale-plan).
func TestExitCodesOfServices(t *testing.T) {
	s, prefix := testConn(t)
	livingNode(t, s)
	shown := map[int]bool{}
	check := func(want int, stdin, args string, says string) {
		t.Helper()
		code, out, errs := run(t, prefix, stdin, strings.Fields(args)...)
		if code != want || !strings.Contains(out+errs, says) {
			t.Errorf("rcctl %s: exit code %d, want %d and %q in:\n%s%s", args, code, want, says, out, errs)
		}
		shown[want] = true
	}
	document := func(arg string) string { return strings.Replace(serviceDocument, "ARG", arg, 1) }
	const yes = " --yes --detach"

	// 3: no service, revision or rollout has that name.
	for _, args := range []string{
		"scale web 1" + yes, "rollback web" +
			yes, "history web", "diff web", "service delete web", "rollout status web", "rollout status web -w",
		"rollout pause web",
		"rollout resume web", "rollout promote web", "rollout rollback web", "rollout abort web",
	} {
		check(exitNotFound, "", args, "web")
	}

	// 2: usage, and documents that are not valid.
	for _, args := range []string{
		"plan", "deploy", "scale web",
		"scale web x" + yes, "rollback" + yes, "rollback web --to x" + yes, "history", "diff", "service delete",
		"rollout status", "rollout pause", "service list x",
	} {
		check(exitUsage, "", args, "")
	}
	for _, args := range []string{"plan -f -", "deploy -f -" + yes, "diff -f -", "apply -f - --dry-run"} {
		check(exitUsage, `{"name": "web", "replicas": -1}`, args, "nothing was written")
	}
	check(exitUsage, document("a"), "deploy -f - --detach", "--yes: missing")

	// 6 and 0: there are changes, and there is nothing to do.
	check(exitChanges, document("a"), "plan -f -", "web-r1")
	check(exitDone, document("a"), "deploy -f -"+yes, "web-r1")
	check(exitRefused, "", "service delete web", "")
	check(exitRefused, "", "service delete web --force", "")
	check(exitRefused, "", "rollout resume web", "it is not paused")
	check(exitRefused, "", "rollout promote web", "it does not wait")
	check(exitDone, "", "rollout status web", "web")
	endRollout(t, s, rollout.Done, 2)
	for _, args := range []string{"plan -f -", "deploy -f -" + yes} {
		check(exitDone, document("a"), args, "up to date")
	}
	for _, args := range []string{"scale web 2" + yes, "history web", "service list"} {
		check(exitDone, "", args, "")
	}
	check(exitRefused, "", "diff web", "no revision but the one in effect")
	check(exitChanges, document("b"), "plan -f -", "")
	ofController := strings.ReplaceAll(goodDocument, "name: web", "name: other")
	for _, args := range []string{"diff -f -", "apply -f - --dry-run"} {
		check(exitChanges, ofController, args, "")
	}
	check(exitDone, ofController, "apply -f -", "")
	for _, args := range []string{"diff -f -", "apply -f - --dry-run"} {
		check(exitDone, ofController, args, "")
	}

	// 3 and 4: the service exists.
	for _, args := range []string{
		"rollback web --to 9" + yes, "diff web --to 9", "rollout status web",
		"rollout pause web",
	} {
		check(exitNotFound, "", args, "")
	}
	check(exitRefused, "", "service delete web", "")
	unknown := `{"name": "lazy", "replicas": 1, "digests": "never", "pod": {"version": 1, "id": "lazy", "launchables": [{"name": "a", "artifact": {"kind": "tar", "url": "file:///nowhere/a.tar"}}]}}`
	for _, args := range []string{"plan -f -", "deploy -f -" + yes} {
		check(exitRefused, unknown, args, "nothing was written")
	}

	// 5: the change was written, but the rollout failed, or the display ended before the rollout.
	for i, outcome := range []rollout.State{rollout.Failed, rollout.Aborted, rollout.Done, ""} {
		code, text := deployUntil(t, s, prefix, document(fmt.Sprint("c", i)), outcome)
		want := exitWait
		if outcome == rollout.Done {
			want = exitDone
		}
		if code != want {
			t.Errorf("a rollout that ends as %q: exit code %d, want %d\n%s", outcome, code, want, text)
		}
		shown[want] = true
	}

	// 1: Consul does not answer.
	for _, args := range []string{
		"plan -f -", "deploy -f -" + yes, "scale web 1" + yes, "rollback web" +
			yes, "history web", "diff web", "service list", "service delete web",
		"rollout status web", "rollout pause web",
	} {
		if code, out, errs := runAt(t.Context(), "127.0.0.1:1",
			prefix, document("a"), strings.Fields(args)...); code != exitError || errs == "" {
			t.Errorf("rcctl %s without Consul: exit code %d\n%s%s", args, code, out, errs)
		}
		shown[exitError] = true
	}

	for code := range ExitCodes { // docs/reference/exit-codes.md has them all
		if !shown[code] {
			t.Errorf("exit code %d is not shown here", code)
		}
	}
}

// docs/reference/exit-codes.md has the exit codes of rcctl exec for commands that were not run. If an argument would
// arrive changed, rcctl refuses it before it sends a request. The script logs tests the answers of a node.
func TestExitCodesOfExec(t *testing.T) {
	_, prefix := testConn(t)
	for _, args := range [][]string{{"caf\xe9"}, {"echo", "caf\xe9"}, {"echo", "ok", "\xff"}} {
		code, out, errs := run(t, prefix, "", append([]string{"exec", "web-main-0", "--"}, args...)...)
		if want := fmt.Sprintf("COMMAND: %q is not valid; allowed: a program and arguments in UTF-8",
			args[len(args)-1]); code != exitUsage || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%q: exit code %d, %q, want %d and %q", args, code, errs, exitUsage, want)
		}
	}
	if code, _, errs := run(t, prefix, "", "exec", "web-main-0", "--", "echo", "café"); code != exitNotFound {
		t.Errorf("an argument in UTF-8: exit code %d, %q, want that the pod is not found", code, errs)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "exit-codes.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "`rcctl exec`")
	table, _, _ = strings.Cut(table, "\n## ")
	for _, code := range []int{nodeapi.NotStarted, nodeapi.NoProgram} {
		if !strings.Contains(table, fmt.Sprintf("\n| %d |", code)) {
			t.Errorf("docs/reference/exit-codes.md says nothing of exit code %d of rcctl exec", code)
		}
	}
}

// deployUntil deploys and follows the rollout. The rollout then ends with the outcome; if that is empty, the display
// ends before the rollout.
func deployUntil(t *testing.T, s *conn, prefix, document string, outcome rollout.State) (code int, text string) {
	t.Helper()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	done := make(chan struct{})
	go func() {
		defer close(done)
		var out, errs string
		code, out, errs = runAt(ctx, consultest.Shared(t).Addr, prefix, document, "deploy", "-f", "-", "--yes")
		text = out + errs
	}()
	consultest.Eventually(t, time.Minute, func() error {
		_, err := s.rollout(t.Context(), "web")
		return err
	})
	svc, err := s.Deployments.Service(t.Context(), "web")
	if err != nil {
		t.Fatal(err)
	}
	if outcome == "" {
		interrupt()
	} else {
		counts := make([]int, len(svc.Controllers))
		counts[len(counts)-1] = 2
		if outcome != rollout.Done {
			counts[len(counts)-1], counts[0] = 0, 2
		}
		endRollout(t, s, outcome, counts...)
	}
	<-done
	if outcome == "" {
		endRollout(t, s, rollout.Failed, make([]int, len(svc.Controllers))...)
	}
	return code, text
}
