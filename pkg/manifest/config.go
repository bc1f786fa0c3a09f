package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// FileKey is the key of an object such as {"$file": "/etc/web/password"}. The node replaces the object with the file's
// content, which is never in Consul. The object must have no other key.
const FileKey = "$file"

// Limits on the configuration.
const (
	MaxConfigDepth = 32     // maps and lists within each other, config itself included
	MaxConfigBytes = 32_768 // as canonical JSON
)

// Config is any tree of JSON. Its numbers are json.Number: a float64 would change 1.0 to 1 and lose digits, and so
// change the digest.
type Config map[string]any

// UnmarshalJSON reads a map. For any other value, also null, it returns a *field.Error.
func (c *Config) UnmarshalJSON(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var value any
	if err := dec.Decode(&value); err != nil {
		return err
	}
	tree, ok := value.(map[string]any)
	if !ok {
		return &field.Error{Value: field.KindOf(value), Allowed: "a map"}
	}
	*c = tree
	return nil
}

const fileAllowed = `only the key $file, with the absolute path of a file on the node: {$file: /etc/web/password}`

func (c Config) validate() field.Errors {
	var errs field.Errors
	if len(c) == 0 {
		return nil
	}
	if _, found := c[FileKey]; found {
		errs.Add(FileKey, field.Text("$file in place of the whole configuration"), "$file below a key of config")
		return errs
	}
	for _, key := range slices.Sorted(maps.Keys(c)) {
		checkTree(&errs, key, c[key], 2)
	}
	if data, err := json.Marshal(c); err != nil {
		errs.Add("", field.Text("a value that JSON cannot hold"), "maps, lists, strings, numbers, true, false and null")
	} else if len(data) > MaxConfigBytes {
		errs.Add("", field.Text(fmt.Sprintf("%d bytes of canonical JSON", len(data))),
			fmt.Sprintf("at most %d bytes", MaxConfigBytes))
	}
	return errs
}

// checkTree refuses too deep nesting and malformed references to files.
func checkTree(errs *field.Errors, at string, value any, depth int) {
	object, isMap := value.(map[string]any)
	list, isList := value.([]any)
	if (isMap || isList) && depth > MaxConfigDepth {
		errs.Add(at, field.Text(fmt.Sprintf("level %d of nesting", depth)),
			fmt.Sprintf("at most %d levels", MaxConfigDepth))
		return
	}
	if file, found := object[FileKey]; found {
		if name, ok := file.(string); !ok || !AbsolutePath.ok(name) {
			errs.Add(field.Join(at, FileKey), file, fileAllowed)
		} else if len(object) > 1 {
			errs.Add(at, field.Text("$file together with other keys"), fileAllowed)
		}
		return
	}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		checkTree(errs, field.Join(at, key), object[key], depth+1)
	}
	for i, item := range list {
		checkTree(errs, fmt.Sprintf("%s[%d]", at, i), item, depth+1)
	}
}
