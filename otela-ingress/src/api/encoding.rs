//! Content codings of request bodies: what was encoded is decoded before it is routed, since the model stands in it.

use super::{body::too_large, error::ApiError};
use async_compression::tokio::bufread::{BrotliDecoder, GzipDecoder, ZlibDecoder, ZstdDecoder};
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use futures::executor::block_on;
use tokio::io::{AsyncRead, AsyncReadExt};

/// No compressor writes more members than this into one body, and each costs us something, also an empty one.
const MEMBERS_MAX: usize = 10_000;

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

impl Coding {
    /// Whether several encoded texts may follow each other, and are one.
    fn has_members(self) -> bool {
        matches!(self, Self::Gzip | Self::Zstd)
    }
}

/// Undoes a coding. It takes as long as it takes: up to a second for what decodes to the limit.
pub(super) fn decode(coding: Coding, bytes: &[u8], limit: usize) -> Result<Bytes, ApiError> {
    let mut decoded = Vec::new();
    let mut rest = bytes;
    for _ in 0..MEMBERS_MAX {
        // All of it is there, so none of these ever waits.
        rest = block_on(member(coding, rest, &mut decoded, limit))?;
        if rest.is_empty() {
            return Ok(decoded.into());
        }
        if !coding.has_members() {
            return Err(corrupt());
        }
    }
    let message = format!("The request's body has more than {MEMBERS_MAX} encoded members.");
    Err(ApiError::bad_request("invalid_encoding", message))
}

/// Decodes the first member, and gives back what is behind it.
async fn member<'a>(
    coding: Coding,
    encoded: &'a [u8],
    decoded: &mut Vec<u8>,
    limit: usize,
) -> Result<&'a [u8], ApiError> {
    macro_rules! undo {
        ($decoder:expr) => {{
            let mut decoder = $decoder;
            inflate(&mut decoder, decoded, limit).await?;
            Ok(decoder.into_inner())
        }};
    }
    match coding {
        Coding::Gzip => undo!(GzipDecoder::new(encoded)),
        Coding::Deflate => undo!(ZlibDecoder::new(encoded)),
        Coding::Zstd => undo!(ZstdDecoder::new(encoded)),
        Coding::Brotli => undo!(BrotliDecoder::new(encoded)),
    }
}

/// Reads no further than one byte beyond the limit, however much there would be.
async fn inflate(decoder: impl AsyncRead + Unpin, decoded: &mut Vec<u8>, limit: usize) -> Result<(), ApiError> {
    let most = (limit - decoded.len()).saturating_add(1);
    let most = u64::try_from(most).unwrap_or(u64::MAX);
    decoder.take(most).read_to_end(decoded).await.map_err(|_| corrupt())?;
    if decoded.len() > limit { Err(too_large(limit)) } else { Ok(()) }
}

fn corrupt() -> ApiError {
    let message = "The request's body cannot be decoded as its Content-Encoding says.";
    ApiError::bad_request("invalid_encoding", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_compression::tokio::bufread::{BrotliEncoder, GzipEncoder, ZlibEncoder, ZstdEncoder};
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
        let undone = decode(Coding::Zstd, &both, 1_000).unwrap();
        assert_eq!(decode(Coding::Gzip, &undone, 1_000).unwrap(), plain);
    }

    #[tokio::test]
    async fn p06_members_are_all_decoded_and_garbage_behind_them_is_not() {
        let (a, b) = (Bytes::from_static(b"{\"model\":"), Bytes::from_static(b"\"m\"}"));
        for (coding, parts) in [
            (Coding::Gzip, [encode(GzipEncoder::new(&a[..])).await, encode(GzipEncoder::new(&b[..])).await]),
            (Coding::Zstd, [encode(ZstdEncoder::new(&a[..])).await, encode(ZstdEncoder::new(&b[..])).await]),
        ] {
            let both = parts.concat();
            assert_eq!(decode(coding, &both, 1_000).unwrap(), "{\"model\":\"m\"}");
            let garbage = [&both[..], b"garbage"].concat();
            assert!(decode(coding, &garbage, 1_000).is_err());
        }
    }

    #[tokio::test]
    async fn p06_of_codings_without_members_nothing_is_left_behind_the_end() {
        let text = Bytes::from_static(b"{\"model\":\"m\"}");
        for (coding, once) in [
            (Coding::Deflate, encode(ZlibEncoder::new(&text[..])).await),
            (Coding::Brotli, encode(BrotliEncoder::new(&text[..])).await),
        ] {
            assert_eq!(decode(coding, &once, 1_000).unwrap(), text);
            for behind in [&b"garbage"[..], &once[..], b"\0"] {
                assert!(decode(coding, &[&once[..], behind].concat(), 1_000).is_err(), "{coding:?} {behind:?}");
            }
        }
    }

    #[tokio::test]
    async fn p06_members_without_anything_in_them_are_counted() {
        let empty = encode(GzipEncoder::new(&b""[..])).await;
        let many = |count: usize| empty.repeat(count);
        assert_eq!(decode(Coding::Gzip, &many(MEMBERS_MAX), 1_000).unwrap(), "");
        let error = decode(Coding::Gzip, &many(MEMBERS_MAX + 1), 1_000).unwrap_err();
        assert!(format!("{error:?}").contains("encoded members"));
    }

    #[tokio::test]
    async fn p06_bombs_and_fragments_are_refused() {
        let zeros = vec![0; 4 << 20];
        let bomb = encode(ZstdEncoder::new(&zeros[..])).await;
        assert!(bomb.len() < 10_000);
        let error = decode(Coding::Zstd, &bomb, 1 << 20).unwrap_err();
        assert!(format!("{error:?}").contains("413"));
        let cut = bomb.slice(..bomb.len() / 2);
        let error = decode(Coding::Zstd, &cut, 8 << 20).unwrap_err();
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
