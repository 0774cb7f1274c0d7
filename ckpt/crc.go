// SPDX-License-Identifier: Apache-2.0

package ckpt

// crcPolynomial is that of CRC-64/NVME, reflected.
const crcPolynomial = 0x9a6c9329ac4bc9b5

// joinCRC returns the checksum of two byte strings that follow one another from their own checksums: a body's is put
// together from those of its chunks, without reading it again.
//
// With all ones before and after, the checksum of AB is crc(A)·x^(8·len(B)) + crc(B) modulo the polynomial: the ones that
// either of them adds cancel each other.
func joinCRC(a, b CRC, lenB int64) CRC {
	factor := uint64(1) << 63 // x^0; the highest bit is the lowest power
	for power, n := uint64(1)<<62, uint64(lenB)*8; n > 0; n >>= 1 {
		if n&1 != 0 {
			factor = mulCRC(factor, power)
		}
		power = mulCRC(power, power)
	}
	return CRC(mulCRC(uint64(a), factor)) ^ b
}

// mulCRC multiplies two polynomials modulo that of the checksum.
func mulCRC(a, b uint64) uint64 {
	var product uint64
	for ; a != 0; a <<= 1 {
		if a>>63 != 0 {
			product ^= b
		}
		carry := b & 1
		b >>= 1
		if carry != 0 {
			b ^= crcPolynomial
		}
	}
	return product
}
