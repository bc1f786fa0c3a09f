package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// variables: a program gets the values of the node's variables in its arguments, its environment and its check. Other
// variables are left as they are written. If a manifest uses the variable of a port that the pod does not have, it is
// refused before anything runs.
func variables(e *env) {
	e.startConsul("")
	e.preparer(1)
	e.farm("f1", "")
	document := func(argument string) string {
		return fmt.Sprintf(`name: vars
replicas: 1
pod:
  version: 1
  id: vars
  min_ready: 0s
  ports:
  - {name: http, dynamic: true}
  launchables:
  - name: main
    artifact: {kind: exec, path: /bin/sh}
    args: [-c, 'echo "given:$0:$1:$2:$OWN:$PORT_HTTP"; exec sleep 100000', %q, "$${PORT_HTTP}", "${OTHER}"]
    env: {OWN: "${RC_ID}"}
  health:
    script: {path: /bin/sh, args: [-c, 'test "$0" = "$PORT_HTTP"', "${PORT_HTTP}"]}
    interval: 1s
`, argument)
	}
	out, err := e.tryRcctl(document("${PORT_NONE}"), "apply", "-f", "-")
	if err == nil || !strings.Contains(out, "pod.launchables[0].args[2]") || !strings.Contains(out, "PORT_HTTP") {
		e.t.Errorf("a variable that the pod does not have: %v, %s", err, out)
	}
	e.applyText(document("${PORT_HTTP}"), "--wait", "--timeout", limit.String())
	said := ""
	e.within(limit, func() error {
		said = ""
		err := filepath.WalkDir(filepath.Join(e.dir, "n1"), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.Name() == "main.log" {
				var text []byte
				text, err = os.ReadFile(path)
				said += string(text)
			}
			return err
		})
		if err == nil && !strings.Contains(said, "given:") {
			err = fmt.Errorf("the program has said %q", said)
		}
		return err
	})
	parts := strings.Split(strings.TrimSpace(said), ":")
	if len(parts) != 6 || parts[1] == "" || parts[1] != parts[5] || parts[2] != "${PORT_HTTP}" ||
		parts[3] != "${OTHER}" || parts[4] != e.rcID("vars") {
		e.t.Errorf("the program was given %q", parts)
	}
}
