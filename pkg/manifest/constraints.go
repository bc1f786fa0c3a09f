package manifest

import (
	"maps"
	"reflect"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// node is a JSON Schema, or a part of one.
type node = map[string]any

// SchemaRules are what the Go types of manifests do not say by themselves, for a JSON Schema of documents that hold one.
type SchemaRules struct {
	Types  map[reflect.Type]node // of types that are written in a way of their own
	Fields map[string]node       // by struct and its field in JSON; those under a struct alone are about fields that go with each other
	Defs   node                  // parts that the others refer to
}

// RulesOfSchema returns these rules. unpinned: an archive may do without its digest.
func RulesOfSchema(unpinned bool) SchemaRules {
	fields := maps.Clone(constraints)
	if unpinned {
		fields["Artifact"] = artifact("url")
	}
	quantity := node{"type": []string{"integer", "string"}, "pattern": quantityText}
	return SchemaRules{
		Types: map[reflect.Type]node{
			reflect.TypeFor[Millicores](): quantity, reflect.TypeFor[Bytes](): quantity,
			reflect.TypeFor[Config](): {"type": "object", "additionalProperties": node{"$ref": "#/$defs/tree"}},
		},
		Fields: fields, Defs: node{"tree": treeSchema()},
	}
}

// constraints are the rules of the schema that no Go type says, by the name of a struct and of its field in JSON. Those
// under a struct alone are about fields that go with each other.
var constraints = map[string]node{
	"Manifest.version":     {"const": Version},
	"Manifest.id":          NameRule(),
	"Manifest.launchables": {"minItems": 1, "maxItems": MaxLaunchables},
	"Manifest.config":      {"not": node{"required": []string{FileKey}}},
	"Manifest.ports":       {"maxItems": MaxPorts},
	"Manifest.volumes":     {"maxItems": MaxVolumes},
	"Manifest.labels":      LabelRule(),

	"Launchable":             {"if": isExec(), "then": empty("command")},
	"Launchable.name":        NameRule(),
	"Launchable.command":     of(innerPath),
	"Launchable.args":        texts(),
	"Launchable.env":         {"maxProperties": MaxEnv, "propertyNames": of(envName), "additionalProperties": text()},
	"Launchable.user":        of(userName),
	"Launchable.work_dir":    of(workPath),
	"Launchable.stop_signal": {"enum": StopSignals},

	"Artifact":        artifact("url", "sha256"),
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
	"Port.name": NameRule(),
	"Port.port": {"minimum": 0, "maximum": 65535},

	"Health":                   {"oneOf": []any{given("http"), given("tcp"), given("script")}},
	"Health.success_threshold": {"minimum": 0, "maximum": MaxThreshold},
	"Health.failure_threshold": {"minimum": 0, "maximum": MaxThreshold},
	"HTTPCheck.port":           NameRule(),
	"HTTPCheck.path":           {"pattern": `^/[^#\x00-\x20\x7f]*$`, "maxLength": MaxTextBytes},
	"TCPCheck.port":            NameRule(),
	"ScriptCheck.launchable":   NameRule(),
	"ScriptCheck.path":         of(workPath),
	"ScriptCheck.args":         texts(),
	"Hook.launchable":          NameRule(),
	"Hook.path":                of(workPath),
	"Hook.args":                texts(),

	"Service.name": NameRule(),
	"Service.port": NameRule(),
	"Service.tags": {"maxItems": MaxTags, "items": node{"type": "string", "pattern": serviceTag.re.String()}},
	"Service.meta": {
		"maxProperties": MaxMeta, "propertyNames": of(metaKey),
		"additionalProperties": node{"type": "string", "pattern": metaValue.re.String()},
	},

	"Volume.name": NameRule(),
}

func of(p pattern) node { return node{"pattern": p.re.String(), "maxLength": MaxTextBytes} }

// NameRule is a name.
func NameRule() map[string]any { return node{"pattern": field.NamePattern, "maxLength": field.MaxName} }

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

// labelPart is the last part of a label's key, and its value.
const labelPart = `[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?`

// LabelKeyRule is a label's key in Kubernetes' syntax.
func LabelKeyRule() map[string]any {
	return node{"pattern": `^(?:[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/)?` + labelPart + `$`}
}

// LabelRule is Kubernetes' syntax of labels. Reserved keys are not allowed.
func LabelRule(reserved ...string) map[string]any {
	key := LabelKeyRule()
	if len(reserved) > 0 {
		key["not"] = node{"enum": reserved}
	}
	return node{
		"maxProperties": MaxLabels, "propertyNames": key,
		"additionalProperties": node{"type": "string", "pattern": `^(?:` + labelPart + `)?$`},
	}
}

// artifact says what goes with which kind; of an archive these fields are required.
func artifact(required ...string) node {
	archive := node{"path": none()}
	for _, name := range required {
		archive[name] = filled()
	}
	return node{
		"if":   node{"properties": node{"kind": node{"const": ArtifactExec}}},
		"then": node{"required": []string{"path"}, "properties": node{"path": filled(), "url": none(), "sha256": none()}},
		"else": node{"required": required, "properties": archive},
	}
}

// quantityText is what resource.ParseQuantity reads.
const quantityText = `^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$`

// treeSchema is any value of the configuration below its top.
func treeSchema() node {
	self := node{"$ref": "#/$defs/tree"}
	return node{"anyOf": []any{
		node{"type": []string{"string", "number", "boolean", "null"}},
		node{"type": "array", "items": self},
		node{"type": "object", "additionalProperties": self, "not": node{"required": []string{FileKey}}},
		node{
			"type": "object", "required": []string{FileKey}, "additionalProperties": false,
			"properties": node{FileKey: node{"type": "string", "pattern": absolutePath.re.String(), "maxLength": MaxTextBytes}},
		},
	}}
}
