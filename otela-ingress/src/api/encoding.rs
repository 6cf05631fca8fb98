//! Content codings of request bodies: what was encoded is decoded before it is routed, since the model stands in it.

use super::{body::too_large, error::ApiError};
use async_compression::tokio::bufread::{BrotliDecoder, GzipDecoder, ZlibDecoder, ZstdDecoder};
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt};

/// A content coding (RFC 9110 section 8.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    Gzip,
    Deflate,
    Zstd,
    Brotli,
}

/// The codings of a body, in the order in which they were applied.
pub(super) fn codings(headers: &HeaderMap) -> Result<Vec<Coding>, ApiError> {
    let mut codings = Vec::new();
    for value in headers.get_all(header::CONTENT_ENCODING) {
        for name in value.to_str().unwrap_or("?").split(',').map(|name| name.trim().to_ascii_lowercase()) {
            codings.push(match name.as_str() {
                "" | "identity" => continue,
                "gzip" | "x-gzip" => Coding::Gzip,
                "deflate" => Coding::Deflate,
                "zstd" => Coding::Zstd,
                "br" => Coding::Brotli,
                _ => {
                    let message = "Content-Encoding is none of gzip, deflate, zstd and br.";
                    return Err(
                        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_encoding", message).close()
                    );
                }
            });
        }
    }
    // Nobody needs more than two; a chain of them is a cheap way to make us work.
    if codings.len() > 4 {
        let message = "Too many content codings.";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_encoding", message).close());
    }
    Ok(codings)
}

pub(super) async fn decode(coding: Coding, bytes: &Bytes, limit: usize) -> Result<Bytes, ApiError> {
    let encoded = &bytes[..];
    match coding {
        Coding::Gzip => {
            let mut decoder = GzipDecoder::new(encoded);
            decoder.multiple_members(true);
            inflate(decoder, limit).await
        }
        Coding::Deflate => inflate(ZlibDecoder::new(encoded), limit).await,
        Coding::Zstd => {
            let mut decoder = ZstdDecoder::new(encoded);
            decoder.multiple_members(true);
            inflate(decoder, limit).await
        }
        Coding::Brotli => inflate(BrotliDecoder::new(encoded), limit).await,
    }
}

/// Reads no further than one byte beyond the limit, however much there would be.
async fn inflate(decoder: impl AsyncRead + Unpin, limit: usize) -> Result<Bytes, ApiError> {
    let mut bytes = Vec::new();
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    decoder.take(most).read_to_end(&mut bytes).await.map_err(|_| {
        let message = "The request's body cannot be decoded as its Content-Encoding says.";
        ApiError::bad_request("invalid_encoding", message)
    })?;
    if bytes.len() > limit { Err(too_large(limit)) } else { Ok(bytes.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_compression::tokio::bufread::{GzipEncoder, ZstdEncoder};
    use axum::http::HeaderValue;

    async fn encode(encoder: impl AsyncRead + Unpin) -> Bytes {
        let mut encoder = encoder;
        let mut bytes = Vec::new();
        encoder.read_to_end(&mut bytes).await.unwrap();
        bytes.into()
    }

    #[tokio::test]
    async fn p06_what_was_encoded_twice_is_decoded_twice() {
        let plain = Bytes::from_static(b"{\"model\":\"m\"}");
        let gzip = encode(GzipEncoder::new(&plain[..])).await;
        let both = encode(ZstdEncoder::new(&gzip[..])).await;
        let undone = decode(Coding::Zstd, &both, 1_000).await.unwrap();
        assert_eq!(decode(Coding::Gzip, &undone, 1_000).await.unwrap(), plain);
    }

    #[tokio::test]
    async fn p06_members_are_all_decoded_and_garbage_behind_them_is_not() {
        let (a, b) = (Bytes::from_static(b"{\"model\":"), Bytes::from_static(b"\"m\"}"));
        for (coding, parts) in [
            (Coding::Gzip, [encode(GzipEncoder::new(&a[..])).await, encode(GzipEncoder::new(&b[..])).await]),
            (Coding::Zstd, [encode(ZstdEncoder::new(&a[..])).await, encode(ZstdEncoder::new(&b[..])).await]),
        ] {
            let both = parts.concat();
            assert_eq!(decode(coding, &both.clone().into(), 1_000).await.unwrap(), "{\"model\":\"m\"}");
            let garbage = [&both[..], b"garbage"].concat();
            assert!(decode(coding, &garbage.into(), 1_000).await.is_err());
        }
    }

    #[tokio::test]
    async fn p06_bombs_and_fragments_are_refused() {
        let zeros = vec![0; 4 << 20];
        let bomb = encode(ZstdEncoder::new(&zeros[..])).await;
        assert!(bomb.len() < 10_000);
        let error = decode(Coding::Zstd, &bomb, 1 << 20).await.unwrap_err();
        assert!(format!("{error:?}").contains("413"));
        let cut = bomb.slice(..bomb.len() / 2);
        let error = decode(Coding::Zstd, &cut, 8 << 20).await.unwrap_err();
        assert!(format!("{error:?}").contains("400"));
    }

    #[test]
    fn p06_unknown_codings_are_named() {
        let mut headers = HeaderMap::new();
        headers.append(header::CONTENT_ENCODING, HeaderValue::from_static("gzip, ZSTD"));
        assert_eq!(codings(&headers).unwrap(), [Coding::Gzip, Coding::Zstd]);
        headers.append(header::CONTENT_ENCODING, HeaderValue::from_static("foo"));
        assert!(format!("{:?}", codings(&headers).unwrap_err()).contains("415"));
    }
}
