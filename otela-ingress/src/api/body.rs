//! Reads a request's body: bounded, decoded, and with room reserved before a byte is held.
//!
//! Memory for bodies is bounded by `bodies_bytes_max` whatever clients do. Room is taken as bytes arrive, so that
//! somebody who announces much and sends little takes little.

use super::error::ApiError;
use crate::{
    defaults::{BODY_ROOM_WITHIN, BODY_STALL_MAX, RETRY_AFTER},
    forward::App,
};
use async_compression::tokio::bufread::{BrotliDecoder, GzipDecoder, ZlibDecoder, ZstdDecoder};
use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, StatusCode, header},
};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use std::sync::Arc;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::OwnedSemaphorePermit,
    time::timeout,
};

/// Room that every body starts with.
const STEP_BYTES: usize = 64 * 1024;
/// No useful text shrinks further than this; what would is a bomb, and waits for more room.
const DECODED_RATIO_MAX: usize = 1_000;

/// The whole body, decoded, and its room.
pub(crate) async fn read(
    app: &App,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Bytes, OwnedSemaphorePermit), ApiError> {
    let limit = app.config.body_bytes_max;
    let codings = codings(headers)?;
    let declared = headers.get(header::CONTENT_LENGTH).map(parse_length).transpose()?;
    if declared.is_some_and(|length| length > limit) {
        return Err(too_large(limit));
    }
    let mut room = reserve(app, STEP_BYTES.min(declared.unwrap_or(STEP_BYTES))).await?;
    let mut bytes = collect(app, body, declared.unwrap_or(0), &mut room).await?;
    // Applied in the order of the header, so undone from its end.
    for coding in codings.into_iter().rev() {
        // It may become as large as it is allowed to, for the moment of decoding.
        let _extra = reserve(app, limit.min(bytes.len().saturating_mul(DECODED_RATIO_MAX))).await?;
        bytes = decode(coding, &bytes, limit).await?;
        grow(app, &mut room, bytes.len()).await?;
    }
    let spare = room.num_permits().saturating_sub(kib(bytes.len()));
    drop(room.split(spare));
    Ok((bytes, room))
}

/// Makes `room` large enough for `bytes`.
async fn grow(app: &App, room: &mut OwnedSemaphorePermit, bytes: usize) -> Result<(), ApiError> {
    let missing = kib(bytes).saturating_sub(room.num_permits());
    if missing > 0 {
        room.merge(reserve(app, missing * 1024).await?);
    }
    Ok(())
}

async fn reserve(app: &App, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
    let wanted = u32::try_from(kib(bytes)).unwrap_or(u32::MAX);
    let room = timeout(BODY_ROOM_WITHIN, Arc::clone(&app.body_room).acquire_many_owned(wanted)).await;
    room.ok().and_then(Result::ok).ok_or_else(|| {
        let message = "Too many large requests are being worked on. Try again shortly.";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code("overloaded").retry_after(RETRY_AFTER).close()
    })
}

fn kib(bytes: usize) -> usize {
    bytes.div_ceil(1024).max(1)
}

async fn collect(
    app: &App,
    mut body: Body,
    declared: usize,
    room: &mut OwnedSemaphorePermit,
) -> Result<Bytes, ApiError> {
    let limit = app.config.body_bytes_max;
    let mut held = BytesMut::with_capacity(declared.min(STEP_BYTES));
    loop {
        let frame = timeout(BODY_STALL_MAX, body.frame()).await.map_err(|_| {
            let message = format!("No more of the request's body came for {BODY_STALL_MAX:?}.");
            ApiError::new(StatusCode::REQUEST_TIMEOUT, message).close()
        })?;
        match frame {
            None => return Ok(held.freeze()),
            Some(Err(_)) => return Err(ApiError::bad_request("The request's body broke off.").close()),
            Some(Ok(frame)) => {
                let Ok(data) = frame.into_data() else { continue };
                if held.len() + data.len() > limit {
                    return Err(too_large(limit));
                }
                if held.len() + data.len() > room.num_permits() * 1024 {
                    // Twice as much each time, so that large bodies are not moved about too often.
                    let next = declared.max((held.len() + data.len()).saturating_mul(2)).min(limit);
                    grow(app, room, next).await?;
                    held.reserve(next - held.len());
                }
                held.extend_from_slice(&data);
            }
        }
    }
}

fn parse_length(value: &HeaderValue) -> Result<usize, ApiError> {
    let length = value.to_str().ok().and_then(|text| text.parse().ok());
    length.ok_or_else(|| ApiError::bad_request("Content-Length is not a number.").close())
}

fn too_large(limit: usize) -> ApiError {
    let message = format!("The request's body is larger than {limit} bytes, the limit of this service.");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message).code("request_too_large").close()
}

/// A content coding (RFC 9110 section 8.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    Gzip,
    Deflate,
    Zstd,
    Brotli,
}

/// The codings of a body, in the order in which they were applied.
fn codings(headers: &HeaderMap) -> Result<Vec<Coding>, ApiError> {
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
                    return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message).close());
                }
            });
        }
    }
    // Nobody needs more than two; a chain of them is a cheap way to make us work.
    if codings.len() > 4 {
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "Too many content codings.").close());
    }
    Ok(codings)
}

async fn decode(coding: Coding, bytes: &Bytes, limit: usize) -> Result<Bytes, ApiError> {
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
    decoder
        .take(most)
        .read_to_end(&mut bytes)
        .await
        .map_err(|_| ApiError::bad_request("The request's body cannot be decoded as its Content-Encoding says."))?;
    if bytes.len() > limit { Err(too_large(limit)) } else { Ok(bytes.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_compression::tokio::bufread::{GzipEncoder, ZstdEncoder};

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
