// Package record has the records of services below deployments/: the document in effect, what its revisions were, and what a deployment reads
// and writes at once. Plans are made of them in pkg/deploy/plan, and pkg/store keeps them.
package record
