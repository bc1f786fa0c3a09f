// Package inspect answers operators' questions about the cluster. It is pure: it takes records and the time as
// arguments, and returns views and sentences. Its callers, such as rcctl, read the records and print the answers.
package inspect
