//! The four states of a session (OpenTela section 3.4), strictly ordered: a session only moves forward.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// What a node says of its own session. `draining` is a flag inside [`Lifecycle::Serving`], not a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Lifecycle {
    #[default]
    /// In the mesh, hardware announced, no service ready yet: idle or loading.
    Join = 0,
    /// At least one service is ready.
    Serving = 1,
    /// The engine has ended; the agent still speaks.
    Down = 2,
    /// Gone for good. The same peer comes back as a new session only.
    Left = 3,
}

/// A step that the order forbids: the caller's bug, nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a session cannot go from {from} back to {to}: start a new session")]
pub struct Backwards {
    /// The state it is in.
    pub from: Lifecycle,
    /// The state that was asked for.
    pub to: Lifecycle,
}

impl Lifecycle {
    /// All states, first to last.
    pub const ALL: [Self; 4] = [Self::Join, Self::Serving, Self::Down, Self::Left];

    /// The wire number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The state behind a wire number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|state| u32::from(state.number()) == number)
    }

    /// `to`, if a session in this state may go there; staying is allowed.
    ///
    /// # Errors
    /// `to` lies before this state.
    pub fn advance(self, to: Self) -> Result<Self, Backwards> {
        if to < self { Err(Backwards { from: self, to }) } else { Ok(to) }
    }

    /// The state's name in the API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Join => "join",
            Self::Serving => "serving",
            Self::Down => "down",
            Self::Left => "left",
        }
    }
}

impl fmt::Display for Lifecycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Lifecycle {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|state| state.name() == name)
            .ok_or_else(|| format!("{name:?} is not a state: join, serving, down or left"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_only_moves_forward() {
        for from in Lifecycle::ALL {
            for to in Lifecycle::ALL {
                assert_eq!(from.advance(to).is_ok(), to >= from);
            }
        }
    }

    #[test]
    fn numbers_and_names_round_trip() {
        for state in Lifecycle::ALL {
            assert_eq!(Lifecycle::from_number(state.number().into()), Some(state));
            assert_eq!(state.name().parse(), Ok(state));
        }
        assert_eq!(Lifecycle::from_number(4), None);
    }
}
