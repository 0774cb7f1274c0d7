// SPDX-License-Identifier: Apache-2.0

// Package s3test gives tests a store that speaks S3: Server, a small one in memory that checks signatures and checksums and
// fails as told, and Gateway and Weed, which start real ones (versitygw and SeaweedFS).
package s3test
