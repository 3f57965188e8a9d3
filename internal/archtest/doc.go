// Package archtest holds the architecture as tests: which room may import
// which, which room each third-party package lives in, and that the documents
// name things that exist. It contains no code of the product.
package archtest
