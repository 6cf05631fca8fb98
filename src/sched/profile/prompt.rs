//! Prompts of a known number of tokens, no two of which begin alike: nobody finds any part of one in a cache.

use super::engine::{Engine, EngineError};
use rand::{RngExt, rngs::StdRng};
use serde_json::{Value, json};

/// Words of which the tokens are drawn from.
const WORDS: u32 = 2_000;
/// Words of the two prompts by whose counts one learns how many tokens a word is.
const PROBES: [u32; 2] = [40, 240];

/// Where prompts come from.
#[derive(Debug)]
pub(super) struct Prompts {
    random: StdRng,
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// Tokens that the engine knows.
    Tokens(Vec<u64>),
    /// Words, where the engine tells of tokens only how many they were: so many with none, and so many for each.
    Words { none: f64, each: f64 },
}

impl Prompts {
    /// Learns of an engine how its model's tokens are counted. `ask` makes a request of a prompt.
    pub(super) async fn of(engine: &Engine, model: &str, ask: impl Fn(Value) -> Value) -> Result<Self, EngineError> {
        let mut random: StdRng = rand::make_rng();
        let known = engine.tokens(model, &words(&mut random, WORDS)).await?.filter(|tokens| !tokens.is_empty());
        if let Some(tokens) = known {
            return Ok(Self { random, source: Source::Tokens(tokens) });
        }
        let mut counts = [0.0; 2];
        for (count, number) in counts.iter_mut().zip(PROBES) {
            let answer = engine.complete(&ask(json!(words(&mut random, number)))).await?;
            let told = answer.prompt.filter(|tokens| *tokens > 0);
            *count = f64::from(told.ok_or_else(|| EngineError::NoUsage(engine.named()))?);
        }
        let each = ((counts[1] - counts[0]) / f64::from(PROBES[1] - PROBES[0])).max(0.1);
        Ok(Self { random, source: Source::Words { none: counts[0] - each * f64::from(PROBES[0]), each } })
    }

    /// A prompt of so many tokens, or about so many if the engine does not tell.
    pub(super) fn draw(&mut self, tokens: u32) -> Value {
        let random = &mut self.random;
        match &self.source {
            Source::Tokens(known) => {
                (0..tokens).map(|_| known[random.random_range(0..known.len())]).collect::<Vec<_>>().into()
            }
            Source::Words { none, each } => {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, small")]
                let number = ((f64::from(tokens) - none) / each).round().max(1.0) as u32;
                json!(words(random, number))
            }
        }
    }
}

/// Words that are none, of three to five letters: in a tokenizer of their own each would be a token.
fn words(random: &mut StdRng, number: u32) -> String {
    let mut text = String::new();
    for nth in 0..number {
        if nth > 0 {
            text.push(' ');
        }
        for _ in 0..random.random_range(3..=5) {
            text.push(char::from(random.random_range(b'a'..=b'z')));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn drawn(source: Source, tokens: u32) -> Vec<Value> {
        let mut prompts = Prompts { random: StdRng::seed_from_u64(1), source };
        (0..20).map(|_| prompts.draw(tokens)).collect()
    }

    #[test]
    fn prompts_have_their_length_and_do_not_begin_alike() {
        let of_tokens = drawn(Source::Tokens((0..5_000).collect()), 64);
        assert!(of_tokens.iter().all(|prompt| prompt.as_array().is_some_and(|tokens| tokens.len() == 64)));
        let begin = |prompt: &Value| prompt.as_array().map(|tokens| tokens[..4].to_vec());
        assert!(of_tokens.windows(2).all(|two| begin(&two[0]) != begin(&two[1])));
        // A first token that nobody asked for, and two for each word.
        let of_words = drawn(Source::Words { none: 1.0, each: 2.0 }, 65);
        let count = |prompt: &Value| prompt.as_str().map(|text| text.split(' ').count());
        assert!(of_words.iter().all(|prompt| count(prompt) == Some(32)));
    }
}
