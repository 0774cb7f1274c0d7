// SPDX-License-Identifier: Apache-2.0

// Package s3test gives tests a store that speaks S3: Server, a small one in memory that checks signatures and checksums and
// fails as told, and Gateway, which starts a real one (versitygw).
package s3test
