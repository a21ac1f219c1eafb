//! Stop texts: nothing of a stop text, not even its beginning, is ever given out.

/// Watches an answer for texts that end it.
#[derive(Debug)]
pub(crate) struct StopMatcher {
    stops: Vec<String>,
    /// Text that may still turn out to be the beginning of a stop text.
    held: String,
}

/// What to do after more text has arrived.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Give this text out and go on.
    Continue(String),
    /// Give this text out; a stop text followed it.
    Stopped {
        text: String,
        /// Which one, counted as they were given.
        stop: usize,
    },
}

impl StopMatcher {
    /// Watches for any of `stops`; empty texts never match.
    pub(crate) fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new() }
    }

    /// Takes the next piece of the answer.
    pub(crate) fn push(&mut self, piece: &str) -> Progress {
        self.held.push_str(piece);
        if let Some((_, start, stop)) = first_complete(&self.held, &self.stops) {
            self.held.truncate(start);
            return Progress::Stopped { text: std::mem::take(&mut self.held), stop };
        }
        let keep_from = self.held.len() - self.longest_beginning();
        let rest = self.held.split_off(keep_from);
        Progress::Continue(std::mem::replace(&mut self.held, rest))
    }

    /// Gives out what was held back: the answer ended without a stop text.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Bytes at the end of the held text that begin a stop text.
    fn longest_beginning(&self) -> usize {
        let begins = |length: usize| {
            let tail = &self.held.as_bytes()[self.held.len() - length..];
            self.stops.iter().any(|stop| stop.as_bytes().starts_with(tail))
        };
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        (1..longest.min(self.held.len() + 1)).rev().find(|&length| begins(length)).unwrap_or(0)
    }
}

/// End, start and number of the stop text that is complete first, whichever way the text was cut.
fn first_complete(text: &str, stops: &[String]) -> Option<(usize, usize, usize)> {
    let found = |(number, stop): (usize, &String)| {
        text.find(stop).map(|start| (start + stop.len(), start, number))
    };
    stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty()).filter_map(found).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Feeds pieces and returns everything that came out, and what stopped it.
    fn run(stops: &[&str], pieces: &[String]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops.iter().map(|&stop| stop.to_owned()).collect());
        let mut out = String::new();
        for piece in pieces {
            match matcher.push(piece) {
                Progress::Continue(text) => out.push_str(&text),
                Progress::Stopped { text, stop } => return (out + &text, Some(stop)),
            }
        }
        (out + &matcher.finish(), None)
    }

    fn pieces(text: &str) -> Vec<String> {
        text.split('|').map(str::to_owned).collect()
    }

    #[test]
    fn a_stop_text_across_pieces_is_never_given_out() {
        assert_eq!(
            run(&["own fox"], &pieces("the br|own| f|ox jumps")),
            ("the br".into(), Some(0))
        );
        assert_eq!(run(&["DEFGHIJ"], &pieces("ABC|DEF|GHI|JKL")), ("ABC".into(), Some(0)));
    }

    #[test]
    fn a_beginning_that_comes_to_nothing_is_given_out_later() {
        assert_eq!(run(&["DEFX"], &pieces("ABC|DEF|GHI")), ("ABCDEFGHI".into(), None));
        assert_eq!(run(&["DEFX"], &pieces("ABC|DEF")), ("ABCDEF".into(), None));
    }

    #[test]
    fn the_stop_text_that_is_complete_first_wins() {
        assert_eq!(run(&["c", "ab"], &pieces("xabc")), ("x".into(), Some(1)));
        assert_eq!(run(&["abcd", "bc"], &pieces("xabcd")), ("xa".into(), Some(1)));
    }

    #[test]
    fn an_empty_stop_text_never_matches() {
        assert_eq!(run(&[""], &pieces("abc")), ("abc".into(), None));
        assert_eq!(run(&["", "b"], &pieces("abc")), ("a".into(), Some(1)));
    }

    proptest! {
        #[test]
        fn the_cutting_into_pieces_does_not_matter(
            text in "[abé]{0,24}",
            stops in proptest::collection::vec("[abé]{1,4}", 1..4),
            cuts in proptest::collection::vec(0usize..25, 0..6),
        ) {
            let chars: Vec<char> = text.chars().collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(chars.len())).collect();
            cuts.extend([0, chars.len()]);
            cuts.sort_unstable();
            let pieces: Vec<String> =
                cuts.windows(2).map(|pair| chars[pair[0]..pair[1]].iter().collect()).collect();
            let stop_at = |end: usize| {
                let ending = stops.iter().enumerate().filter(|(_, stop)| text[..end].ends_with(*stop));
                ending.map(|(number, stop)| (end - stop.len(), number)).min()
            };
            let stopped =
                text.char_indices().find_map(|(at, char)| stop_at(at + char.len_utf8()));
            let told = stopped.map_or(text.len(), |(at, _)| at);
            let expected = (text[..told].to_owned(), stopped.map(|(_, number)| number));
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&stops, &pieces), expected);
        }
    }
}
