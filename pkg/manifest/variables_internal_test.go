package manifest

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestExpand(t *testing.T) {
	t.Parallel()
	values := map[string]string{
		"PORT_HTTP": "8080", "POD_INDEX": "3", "RC_ID": "web", "VOLUME_DATA": "/v/${POD_INDEX}",
		"HOME": "/root", "PORTX": "no",
	}
	for text, want := range map[string]string{
		"":                              "",
		"--listen=:${PORT_HTTP}":        "--listen=:8080",
		"${RC_ID}-${POD_INDEX}":         "web-3",
		"${VOLUME_DATA}/x":              "/v/${POD_INDEX}/x", // variables in values are not replaced
		"$${PORT_HTTP}":                 "${PORT_HTTP}",
		"$$${PORT_HTTP}":                "$${PORT_HTTP}",
		"a$${PORT_HTTP}${PORT_HTTP}":    "a${PORT_HTTP}8080",
		"$PORT_HTTP":                    "$PORT_HTTP",
		"${HOME} ${PORTX} $${HOME} $$":  "${HOME} ${PORTX} $${HOME} $$",
		"${PORT_HTTP:-1} ${ PORT_HTTP}": "${PORT_HTTP:-1} ${ PORT_HTTP}",
		"${port_HTTP} ${MY_PORT_HTTP}":  "${port_HTTP} ${MY_PORT_HTTP}",
		"${PORT_HTTP":                   "${PORT_HTTP",
		"${POD_REPLICAS}":               "",
	} {
		if got := Expand(text, values); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

// Expand changes only variables of the node, and removes the escape from escaped ones, also beside other text.
func TestExpandProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		foreign := rapid.StringMatching(`([a-z ={}/]|\$\{[a-z]+\}|\$[A-Z]+ )*`).Draw(t, "foreign")
		if got := Expand(foreign, map[string]string{"PORT_A": "1"}); got != foreign {
			t.Fatalf("%q became %q", foreign, got)
		}
		if got, want := Expand(foreign+"${PORT_A}$${PORT_A}", map[string]string{"PORT_A": "1"}), foreign+
			"1${PORT_A}"; got != want && !strings.HasSuffix(foreign, "$") {
			t.Fatalf("%q, want %q", got, want)
		}
	})
}

// Wherever variables are expanded, one that the pod does not have is a mistake.
func TestVariablesThatThePodDoesNotHave(t *testing.T) {
	t.Parallel()
	const document = `{"version": 1, "id": "web", "ports": [{"name": "http-main", "dynamic": true}], "volumes": [{"name": "data"}],
		"launchables": [{"name": "a", "artifact": {"kind": "exec", "path": "/bin/x"}, "args": ["x", "ARGS"], "env": {"A": "ENV"}}],
		"health": {HEALTH},
		"hooks": {"before_stop": {"path": "/bin/x", "args": ["HOOK"]}}}`
	places := map[string]string{
		"ARGS": "launchables[0].args[1]", "ENV": "launchables[0].env.A",
		"SCRIPT": "health.script.args[0]", "PATH": "health.http.path", "HOOK": "hooks.before_stop.args[0]",
	}
	for place, path := range places {
		for text, valid := range map[string]bool{
			"/${PORT_HTTP_MAIN}": true, "/${VOLUME_DATA}": true,
			"/${POD_INDEX}${POD_ID}${POD_ROLE}${POD_REPLICAS}${POD_DIGEST}${POD_HOME}${RC_ID}": true,
			"/$${PORT_NONE}": true, "/${NONE}": true, "/${NODE_NAME}": true,
			"/${PORT_HTTP}": false, "/${VOLUME_NONE}": false, "/${POD_NAME}": false, "/${RC_NAME}": false,
			"/${PORT_}": false,
		} {
			health := `"script": {"path": "/bin/x", "args": ["SCRIPT"]}`
			if place == "PATH" {
				health = `"http": {"port": "http-main", "path": "PATH"}`
			}
			doc := strings.ReplaceAll(strings.Replace(document, "HEALTH", health, 1), `"`+place+`"`, `"`+text+`"`)
			_, err := Decode([]byte(doc))
			if (err == nil) != valid {
				t.Errorf("%s in %s: %v", text, path, err)
			}
			if err == nil {
				continue
			}
			for _, want := range []string{
				path, strings.TrimPrefix(text, "/"), "PORT_HTTP_MAIN, RC_ID, VOLUME_DATA",
				"$" + strings.TrimPrefix(text, "/"),
			} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%s in %s: %v does not say %s", text, path, err, want)
				}
			}
		}
	}
}
