package manifest

import "github.com/rcfarm/rcfarm/pkg/field"

// constraints are the rules of the schema that no Go type says, by the name of a struct and of its field in JSON. Those
// under a struct alone are about fields that go with each other.
var constraints = map[string]node{
	"Manifest.version":     {"const": Version},
	"Manifest.id":          name(),
	"Manifest.launchables": {"minItems": 1, "maxItems": MaxLaunchables},
	"Manifest.config":      {"not": node{"required": []string{FileKey}}},
	"Manifest.ports":       {"maxItems": MaxPorts},
	"Manifest.volumes":     {"maxItems": MaxVolumes},
	"Manifest.labels":      labelSet(),

	"Launchable":             {"if": isExec(), "then": empty("command")},
	"Launchable.name":        name(),
	"Launchable.command":     of(innerPath),
	"Launchable.args":        texts(),
	"Launchable.env":         {"maxProperties": MaxEnv, "propertyNames": of(envName), "additionalProperties": text()},
	"Launchable.user":        of(userName),
	"Launchable.work_dir":    of(workPath),
	"Launchable.stop_signal": {"enum": StopSignals},

	"Artifact": {
		"if":   node{"properties": node{"kind": node{"const": ArtifactExec}}},
		"then": node{"required": []string{"path"}, "properties": node{"path": filled(), "url": none(), "sha256": none()}},
		"else": node{"required": []string{"url", "sha256"}, "properties": node{"url": filled(), "sha256": filled(), "path": none()}},
	},
	"Artifact.kind":   {"enum": []string{ArtifactTar, ArtifactExec}},
	"Artifact.url":    of(artifactURL),
	"Artifact.sha256": of(hexDigest),
	"Artifact.path":   of(absolutePath),

	"Restart.policy": {"enum": []string{string(RestartAlways), string(RestartOnFailure), string(RestartNever)}},

	"Resources.cpu":    {"minimum": 0, "maximum": MaxCPU},
	"Resources.memory": {"minimum": 0, "maximum": MaxMemory},
	"Resources.pids":   {"minimum": 0, "maximum": MaxPIDs},

	"Port": {
		"if":   node{"required": []string{"dynamic"}, "properties": node{"dynamic": node{"const": true}}},
		"then": node{"properties": node{"port": node{"const": 0}}},
		"else": node{"required": []string{"port"}, "properties": node{"port": node{"minimum": 1}}},
	},
	"Port.name": name(),
	"Port.port": {"minimum": 0, "maximum": 65535},

	"Health":                   {"oneOf": []any{given("http"), given("tcp"), given("script")}},
	"Health.success_threshold": {"minimum": 0, "maximum": MaxThreshold},
	"Health.failure_threshold": {"minimum": 0, "maximum": MaxThreshold},
	"HTTPCheck.port":           name(),
	"HTTPCheck.path":           {"pattern": `^/[^#\x00-\x20\x7f]*$`, "maxLength": MaxTextBytes},
	"TCPCheck.port":            name(),
	"ScriptCheck.launchable":   name(),
	"ScriptCheck.path":         of(workPath),
	"ScriptCheck.args":         texts(),
	"Hook.launchable":          name(),
	"Hook.path":                of(workPath),
	"Hook.args":                texts(),

	"Service.name": name(),
	"Service.port": name(),
	"Service.tags": {"maxItems": MaxTags, "items": node{"type": "string", "pattern": serviceTag.re.String()}},
	"Service.meta": {
		"maxProperties": MaxMeta, "propertyNames": of(metaKey),
		"additionalProperties": node{"type": "string", "pattern": metaValue.re.String()},
	},

	"Volume.name": name(),
}

func of(p pattern) node { return node{"pattern": p.re.String(), "maxLength": MaxTextBytes} }
func name() node        { return node{"pattern": field.NamePattern, "maxLength": field.MaxName} }
func text() node {
	return node{"type": "string", "pattern": `^[^\x00]*$`, "maxLength": MaxTextBytes}
}
func texts() node  { return node{"maxItems": MaxArgs, "items": text()} }
func filled() node { return node{"minLength": 1} }
func none() node   { return node{"maxLength": 0} }

// given says that a part is there.
func given(name string) node {
	return node{"required": []string{name}, "properties": node{name: node{"type": "object"}}}
}

// empty says that a text is not there.
func empty(name string) node { return node{"properties": node{name: none()}} }

// isExec holds for a launchable whose artifact is a program of the node.
func isExec() node {
	return node{"properties": node{"artifact": node{"properties": node{"kind": node{"const": ArtifactExec}}}}}
}

// labelSet is Kubernetes' syntax of labels.
func labelSet() node {
	const part = `[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?`
	return node{
		"maxProperties":        MaxLabels,
		"propertyNames":        node{"pattern": `^(?:[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/)?` + part + `$`},
		"additionalProperties": node{"type": "string", "pattern": `^(?:` + part + `)?$`},
	}
}
