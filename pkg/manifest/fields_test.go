package manifest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// mistake replaces a part of a manifest.
type mistake struct {
	name, old, new string
	want           string // one line for each mistake; empty: the manifest is valid
}

// eachMistake calls f with each manifest that has a mistake.
func eachMistake(t *testing.T, f func(t *testing.T, m mistake, text []byte)) {
	t.Helper()
	for of, list := range map[string][]mistake{
		all: append(mistakes(), containerMistakes()...), allImage: imageMistakes(),
	} {
		for _, m := range list {
			t.Run(m.name, func(t *testing.T) {
				if m.old != "" && !strings.Contains(of, m.old) {
					t.Fatalf("the manifest has no %s", m.old)
				}
				f(t, m, []byte(strings.Replace(of, m.old, m.new, 1)))
			})
		}
	}
}

func TestValidateFields(t *testing.T) {
	eachMistake(t, func(t *testing.T, m mistake, text []byte) {
		_, err := manifest.Decode(text)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != m.want {
			t.Errorf("got\n%s\nwant\n%s", got, m.want)
		}
	})
}

func mistakes() []mistake {
	const (
		inner = "a path in the artifact such as bin/launch: not absolute, without '.', '..', empty parts and " +
			"control characters"
		absolute = "an absolute path such as /opt/web/run, without '.', '..', empty parts and control characters"
		work     = "an absolute path, or one below POD_HOME such as data, without '.', '..', empty parts and control " +
			"characters"
		user = "the name of an account of the node, or a user id from 1 to 4294967294 in quotes; user 0 only as " +
			"root"
		signals  = "one of SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2, SIGWINCH, SIGABRT"
		backoff  = `a length of time from "100ms" to "1h0m0s"`
		port     = "a TCP port from 1 to 65535, or dynamic: true in place of it"
		name     = "1 to 63 lower-case letters, digits and '-', starting and ending with a letter or digit"
		positive = `a length of time greater than zero, such as "30s"`
		file     = "only the key $file, with the absolute path of a file on the node: {$file: /etc/web/password}"
		text     = "at most 4096 bytes without a zero byte"
	)
	deep := func(n int) string { return strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n) }
	return []mistake{
		{"valid", "", "", ""},
		{
			"exec without a path", `,"path":"/usr/bin/probe"`, ``,
			"launchables[1].artifact.path: missing; allowed: " + absolute,
		},
		{
			"exec with a relative path", `"/usr/bin/probe"`, `"usr/bin/probe"`,
			`launchables[1].artifact.path: "usr/bin/probe" is not valid; allowed: ` + absolute,
		},
		{
			"exec that climbs", `"/usr/bin/probe"`, `"/usr/../bin/probe"`,
			`launchables[1].artifact.path: "/usr/../bin/probe" is not valid; allowed: ` + absolute,
		},
		{
			"exec of a directory", `"/usr/bin/probe"`, `"/usr/bin/"`,
			`launchables[1].artifact.path: "/usr/bin/" is not valid; allowed: ` + absolute,
		},
		{
			"exec of the root", `"/usr/bin/probe"`, `"/"`,
			`launchables[1].artifact.path: "/" is not valid; allowed: ` + absolute,
		},
		{
			"exec with a newline", `"/usr/bin/probe"`, `"/usr/a\nb"`,
			`launchables[1].artifact.path: "/usr/a\nb" is not valid; allowed: ` + absolute,
		},
		{
			"exec that is too long", `"/usr/bin/probe"`, `"/` + strings.Repeat("a", 4096) + `"`,
			`launchables[1].artifact.path: "/` + strings.Repeat("a", 79) + `..." is not valid; allowed: ` + absolute,
		},
		{"dots in names", `"/usr/bin/probe"`, `"/usr/.a/..b/.../c."`, ""},
		{
			"exec with a url", `"/usr/bin/probe"`, `"/usr/bin/probe","url":"file:///a","sha256":"aa"`,
			`launchables[1].artifact.url: "file:///a" is not valid; allowed: nothing: an exec artifact is on the node already` + "\n" +
				`launchables[1].artifact.sha256: "aa" is not valid; allowed: nothing: an exec artifact is on the node already`,
		},
		{
			"tar with a path", `{"kind":"tar",`, `{"kind":"tar","path":"/a",`,
			`launchables[0].artifact.path: "/a" is not valid; allowed: nothing: only an exec artifact has a path`,
		},
		{
			"command of an exec", `"name":"probe",`, `"name":"probe","command":"a",`,
			`launchables[1].command: "a" is not valid; allowed: nothing: an exec artifact names its program itself`,
		},
		{
			"absolute command", `"bin/run"`, `"/bin/run"`,
			`launchables[0].command: "/bin/run" is not valid; allowed: ` + inner,
		},
		{
			"command that climbs", `"bin/run"`, `"../run"`,
			`launchables[0].command: "../run" is not valid; allowed: ` + inner,
		},
		{
			"command that climbs later", `"bin/run"`, `"bin/../../run"`,
			`launchables[0].command: "bin/../../run" is not valid; allowed: ` + inner,
		},
		{
			"command that is the artifact", `"bin/run"`, `"."`,
			`launchables[0].command: "." is not valid; allowed: ` + inner,
		},
		{
			"command with a zero byte", `"bin/run"`, `"bin/\u0000"`,
			`launchables[0].command: "bin/\x00" is not valid; allowed: ` + inner,
		},
		{"command that is a directory", `"bin/run"`, `"bin/launch.d"`, ""},
		{"user 0", `"user":"web"`, `"user":"0"`, `launchables[0].user: "0" is not valid; allowed: ` + user},
		{
			"user 0 in disguise", `"user":"web"`, `"user":"00"`,
			`launchables[0].user: "00" is not valid; allowed: ` + user,
		},
		{"root", `"user":"web"`, `"user":"root"`, ""},
		{"user by number", `"user":"web"`, `"user":"4294967294"`, ""},
		{
			"user that means none", `"user":"web"`, `"user":"4294967295"`,
			`launchables[0].user: "4294967295" is not valid; allowed: ` + user,
		},
		{
			"user with a group", `"user":"web"`, `"user":"web:web"`,
			`launchables[0].user: "web:web" is not valid; allowed: ` + user,
		},
		{
			"user that is an option", `"user":"web"`, `"user":"-u"`,
			`launchables[0].user: "-u" is not valid; allowed: ` + user,
		},
		{
			"user without quotes", `"user":"web"`, `"user":1000`,
			`launchables[0].user: the number 1000 is not valid; allowed: a string; put it in quotes`,
		},
		{"absolute directory", `"work_dir":"data"`, `"work_dir":"/var/lib/web"`, ""},
		{
			"directory that climbs", `"work_dir":"data"`, `"work_dir":"../data"`,
			`launchables[0].work_dir: "../data" is not valid; allowed: ` + work,
		},
		{
			"policy", `"on-failure"`, `"sometimes"`,
			`launchables[0].restart.policy: "sometimes" is not valid; allowed: always, on-failure or never`,
		},
		{
			"short backoff", `"200ms"`, `"99ms"`,
			`launchables[0].restart.backoff_min: "99ms" is not valid; allowed: ` + backoff,
		},
		{
			"long backoff", `"backoff_max":"30s"`, `"backoff_max":"61m"`,
			`launchables[0].restart.backoff_max: "1h1m0s" is not valid; allowed: ` + backoff,
		},
		{
			"backoff upside down", `"200ms"`, `"31s"`,
			`launchables[0].restart.backoff_min: "31s" is not valid; allowed: at most backoff_max, which is "30s"`,
		},
		{
			"backoff above the default", `"backoff_min":"200ms","backoff_max":"30s"`, `"backoff_min":"61s"`,
			`launchables[0].restart.backoff_min: "1m1s" is not valid; allowed: at most backoff_max, which is "1m0s" by default`,
		},
		{
			"backoff below the default", `"backoff_min":"200ms","backoff_max":"30s"`, `"backoff_max":"400ms"`,
			`launchables[0].restart.backoff_max: "400ms" is not valid; allowed: at least backoff_min, which is "500ms" by default`,
		},
		{"pids", `"pids":64`, `"pids":-1`, "launchables[0].resources.pids: -1 is not valid; allowed: processes and " +
			"threads, from 0 to 4194304"},
		{"no limit on pids", `"pids":64`, `"pids":0`, ""},
		{
			"signal that cannot be caught", `"SIGINT"`, `"SIGKILL"`,
			`launchables[0].stop_signal: "SIGKILL" is not valid; allowed: ` + signals,
		},
		{"signal in short", `"SIGINT"`, `"INT"`, `launchables[0].stop_signal: "INT" is not valid; allowed: ` + signals},
		{
			"port and dynamic", `"dynamic":true`, `"dynamic":true,"port":1`,
			"ports[1]: port together with dynamic is not valid; allowed: exactly one of port and dynamic",
		},
		{"neither port nor dynamic", `"dynamic":true`, `"dynamic":false`, "ports[1].port: missing; allowed: " + port},
		{"two dynamic ports", `"dynamic":true}`, `"dynamic":true},{"name":"other","dynamic":true}`, ""},
		{"negative port", `"port":8080`, `"port":-1`, "ports[0].port: -1 is not valid; allowed: " + port},
		{
			"two checks", `"interval"`, `"script":{"path":"a"},"interval"`,
			"health: http together with script is not valid; allowed: exactly one of http, tcp and script",
		},
		{
			"threshold", `"success_threshold":2`, `"success_threshold":-1`,
			"health.success_threshold: -1 is not valid; allowed: passes in a row, from 0 to 100",
		},
		{
			"other threshold", `"failure_threshold":3`, `"failure_threshold":101`,
			"health.failure_threshold: 101 is not valid; allowed: failures in a row, from 0 to 100",
		},
		{
			"negative delay", `"initial_delay":"3s"`, `"initial_delay":"-3s"`,
			`health.initial_delay: "-3s" is not valid; allowed: a length of time with a unit, zero or more, such as "500ms", "30s" or "10m"`,
		},
		{"hook without a path", `"hooks/a"`, `""`, "hooks.before_install.path: missing; allowed: " + inner},
		{
			"absolute hook of an archive", `"hooks/b"`, `"/hooks/b"`,
			`hooks.after_install.path: "/hooks/b" is not valid; allowed: ` + inner,
		},
		{
			"relative hook of a program", `"/usr/bin/f"`, `"f"`,
			`hooks.after_stop.path: "f" is not valid; allowed: ` + absolute + ": probe has an exec artifact",
		},
		{"hook of nobody", `"launchable":"probe"`, `"launchable":"sever"`, "hooks.after_stop.launchable: \"sever\" " +
			"is not valid; allowed: the name of one of the pod's launchables: server, probe\n" +
			`hooks.after_stop.path: "/usr/bin/f" is not valid; allowed: ` + inner},
		{
			"hook without time", `"timeout":"5s"`, `"timeout":"0s"`,
			`hooks.after_stop.timeout: "0s" is not valid; allowed: a length of time greater than zero, at most "1h0m0s"`,
		},
		{
			"hook that takes for ever", `"timeout":"5s"`, `"timeout":"2h"`,
			`hooks.after_stop.timeout: "2h0m0s" is not valid; allowed: a length of time greater than zero, at most "1h0m0s"`,
		},
		{"hook's argument", `["x"]`, `["\u0000"]`, `hooks.after_stop.args[0]: "\x00" is not valid; allowed: ` + text},
		{"unknown hook", `"before_install"`, `"before"`, "hooks.before: unknown field; allowed: after_install, " +
			"after_launch, after_stop, before_install, before_launch, before_stop"},
		{"stop at once", `"1h0m0s"}`, `"0s"}`, `disconnect.stop_after: "0s" is not valid; allowed: ` + positive},
		{"volume without a name", `{"name":"data"}`, `{"name":""}`, "volumes[0].name: missing; allowed: " + name},
		{
			"volume that climbs", `{"name":"data"}`, `{"name":".."}`,
			`volumes[0].name: ".." is not valid; allowed: ` + name,
		},
		{
			"volume twice", `{"name":"data"}`, `{"name":"data"},{"name":"data"}`,
			`volumes[1].name: "data" is not valid; allowed: a value that no other entry has`,
		},
		{
			"too many volumes", `{"name":"data"}`, manyVolumes(17),
			"volumes: 17 entries is not valid; allowed: 0 to 16 entries",
		},
		{"config that is a list", `"config":{`, `"config":[],"x":{`, "config: a list is not valid; allowed: a " +
			"map\nx: unknown field; allowed: config, disconnect, health, hooks, id, labels, launchables, min_ready, " +
			"ports, service, version, volumes"},
		{"config that is a file", `"half":0.50`, `"$file":"/etc/web.json"`, "config.$file: $file in place of the " +
			"whole configuration is not valid; allowed: $file below a key of config"},
		{
			"relative file", `"/etc/all/password"`, `"password"`,
			`config.password.$file: "password" is not valid; allowed: ` + file,
		},
		{
			"file that is no text", `"/etc/all/password"`, `true`,
			`config.password.$file: true is not valid; allowed: ` + file,
		},
		{
			"file and more", `{"$file"`, `{"a":1,"$file"`,
			"config.password: $file together with other keys is not valid; allowed: " + file,
		},
		{
			"file in a list", `"large"`, `"files":[{"x":{"$file":"a/b"}}],"large"`,
			`config.files[0].x.$file: "a/b" is not valid; allowed: ` + file,
		},
		{
			"key twice in config", `"half":0.50`, `"half":1,"half":2`,
			"config.half: a second time is not valid; allowed: each key once",
		},
		{"deep enough", `"half":0.50`, `"half":` + deep(31), ""},
		{
			"too deep", `"half":0.50`, `"half":` + deep(32),
			"config.half" + strings.Repeat(".a", 31) +
				": level 33 of nesting is not valid; allowed: at most 32 levels",
		},
		{
			"much too deep", `"half":0.50`, `"half":` + strings.Repeat(`[`, 1000) + strings.Repeat("]", 1000),
			"config.half" + strings.Repeat("[0]", 31) +
				": level 33 of nesting is not valid; allowed: at most 32 levels",
		},
		{
			"too large", `"half":0.50`, `"half":"` + strings.Repeat("x", 33_000) + `"`,
			"config: 33120 bytes of canonical JSON is not valid; allowed: at most 32768 bytes",
		},
	}
}

func manyVolumes(n int) string {
	volumes := make([]string, n)
	for i := range volumes {
		volumes[i] = fmt.Sprintf(`{"name":"v%d"}`, i)
	}
	return strings.Join(volumes, ",")
}
