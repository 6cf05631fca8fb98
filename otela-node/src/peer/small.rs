//! Small files of others' making: whatever is named instead of one, reading it neither hangs nor fills the memory.

use rustix::fs::OFlags;
use std::{
    fs::OpenOptions,
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// The text of a file of at most `bytes_max`.
///
/// # Errors
/// It cannot be read, is no regular file, is longer, or is not UTF-8.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<String> {
    // A pipe would be waited for until somebody writes to it.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).map_err(io::Error::other)?;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it is longer than {bytes_max} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not text"))
}

/// Whether a file is one that can be read to its end without waiting for anybody.
pub(in crate::peer) fn is_file(path: &Path) -> io::Result<()> {
    if std::fs::metadata(path)?.is_file() {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
    }
}
