//! Prompts of a wanted number of tokens, the same for the same seed.

/// Plain words: most tokenizers have each as one token, with the space before it.
const WORDS: [&str; 64] = [
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not",
    "he", "this", "are", "or", "his", "from", "at", "which", "but", "have", "an", "had", "they", "you",
    "were", "their", "one", "all", "we", "can", "her", "has", "there", "been", "if", "more", "when", "will",
    "would", "who", "so", "no", "time", "water", "people", "world", "house", "light", "river", "stone",
    "paper", "music", "garden", "winter", "number", "power", "story", "market",
];

/// Numbers that look random (splitmix64).
pub struct Draws(u64);

impl Draws {
    pub fn new(seed: u64) -> Draws {
        Draws(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        let span = (high.saturating_sub(low) as u64).saturating_add(1);
        low + (self.next() % span) as usize
    }
}

/// Counts a text's tokens.
pub type Counter<'a, E> = dyn Fn(&str) -> Result<usize, E> + 'a;

/// A text of about `tokens` tokens. `count` counts a text's tokens; without it a word is taken for a token.
pub fn prompt<E>(draws: &mut Draws, tokens: usize, count: Option<&Counter<'_, E>>) -> Result<String, E> {
    let words: Vec<&str> = (0..tokens).map(|_| WORDS[draws.between(0, WORDS.len() - 1)]).collect();
    let Some(count) = count else { return Ok(words.join(" ")) };
    // The most words that stay within the number: what a start token or a word of two tokens takes is left out.
    let mut n = words.len();
    loop {
        let text = words[..n].join(" ");
        let over = count(&text)?.saturating_sub(tokens);
        if over == 0 || n <= 1 {
            return Ok(text);
        }
        n = n.saturating_sub(over.div_ceil(2)).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_as_long_as_wanted_and_differ_by_seed() {
        // Two tokens more than words, as a tokenizer with a start and an end token has.
        let count = |text: &str| Ok::<_, ()>(text.split(' ').count() + 2);
        let text = |seed, tokens| prompt(&mut Draws::new(seed), tokens, Some(&count)).unwrap();
        for tokens in [3, 20, 51, 800] {
            assert_eq!(count(&text(1, tokens)), Ok(tokens));
        }
        assert_eq!(text(1, 40), text(1, 40));
        assert_ne!(text(1, 40), text(2, 40));
        let plain = prompt::<()>(&mut Draws::new(1), 40, None).unwrap();
        assert_eq!(plain.split(' ').count(), 40);
    }

    #[test]
    fn draws_reach_both_ends() {
        let mut draws = Draws::new(3);
        let drawn: std::collections::BTreeSet<usize> = (0..200).map(|_| draws.between(5, 8)).collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [5, 6, 7, 8]);
    }
}
