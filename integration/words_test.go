package integration

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// dialect has words that readers had to read twice, with plain replacements. Comments and docs may have each at most as
// often as the entry says: some uses are intended, and some are not rewritten yet.
var dialect = []struct {
	words   string // a regular expression
	most    int
	instead string
}{
	{`whoever`, 0, "name the component or the person"},
	{`(what|was|were|is|are) told`, 0, "reported, published, pushed, claimed, sent"},
	{`(nobody|nothing|none) but`, 0, "only"},
	{`not un[a-z]+ed|never without`, 1, "say it without the double negation"},
	{`that of|those of`, 6, "repeat the noun"},
	{`whatever`, 7, "name what varies"},
}

func commentsOf(t *testing.T, path string) string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, group := range file.Comments {
		out.WriteString(group.Text() + "\n")
	}
	return out.String()
}

var blank = regexp.MustCompile(`\s+`)

func TestDocsAndCommentsArePlain(t *testing.T) {
	t.Parallel()
	texts := map[string]string{}
	written(t, func(path, text string) { texts[path] = text })
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() != ".." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case strings.HasSuffix(path, ".go"):
			texts[path] = commentsOf(t, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dialect {
		words, n := regexp.MustCompile(`(?i)\b(`+d.words+`)\b`), 0
		var first []string
		for path, text := range texts {
			for _, found := range words.FindAllString(blank.ReplaceAllString(text, " "), -1) {
				if n++; len(first) < 10 {
					first = append(first, path+": "+found)
				}
			}
		}
		if t.Logf("%5d %s", n, d.words); n > d.most {
			t.Errorf("%d uses of %s, at most %d are allowed; instead: %s; such as\n%s",
				n, d.words, d.most, d.instead, strings.Join(first, "\n"))
		}
	}
}
