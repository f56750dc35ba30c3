//! What the measurements of backends share: spreads of times, and rates of large files.

use std::{fmt, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use tokio::time::Instant;
use wsm_core::{ReadOptions, Result, Workspace, WriteOptions};

/// How long something took, many times.
#[derive(Debug, Clone, Default)]
pub struct Spread(pub Vec<Duration>);

impl Spread {
    /// Takes one more time.
    pub fn push(&mut self, time: Duration) {
        self.0.push(time);
    }

    /// The one that half of them stay below; nothing where there is none.
    pub fn middle(&self) -> Duration {
        self.at(50)
    }

    fn at(&self, percent: usize) -> Duration {
        let mut times = self.0.clone();
        times.sort_unstable();
        times.get(times.len() * percent / 100).copied().unwrap_or_default()
    }
}

/// The middle, and what 95 of 100 stay below.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (middle, high) = (millis(self.middle()), millis(self.at(95)));
        write!(f, "{middle:6.2} ms in the middle, {high:6.2} ms at the 95th")
    }
}

/// A time in milliseconds.
pub fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// How fast a file went in and out, several times, in megabytes a second.
#[derive(Debug, Clone, Default)]
pub struct Rates {
    writes: Vec<f64>,
    reads: Vec<f64>,
}

impl Rates {
    /// Writes `bytes` bytes to `path` and reads them again, `rounds` times.
    ///
    /// # Errors
    ///
    /// What the workspace says.
    pub async fn of(workspace: &dyn Workspace, path: &str, bytes: usize, rounds: usize) -> Result<Self> {
        let piece = Bytes::from(vec![7; 256 << 10]);
        let rate = |begun: Instant| bytes as f64 / 1e6 / begun.elapsed().as_secs_f64();
        let mut rates = Self::default();
        for _ in 0..rounds {
            let pieces = std::iter::repeat_n(piece.clone(), bytes / piece.len());
            let body = stream::iter(pieces.map(Ok)).boxed();
            let begun = Instant::now();
            workspace.write(path, body, WriteOptions::default()).await?;
            rates.writes.push(rate(begun));
            let begun = Instant::now();
            let file = workspace.read(path, ReadOptions::default()).await?;
            let length = file.body.try_fold(0, async |sum, bytes| Ok(sum + bytes.len())).await?;
            assert_eq!(length, bytes, "the file comes back whole");
            rates.reads.push(rate(begun));
            workspace.remove(path, wsm_core::RemoveOptions::default()).await?;
        }
        Ok(rates)
    }

    /// The best and the worst way in.
    pub fn writes(&self) -> String {
        best_and_worst(&self.writes)
    }

    /// The best and the worst way out.
    pub fn reads(&self) -> String {
        best_and_worst(&self.reads)
    }
}

fn best_and_worst(rates: &[f64]) -> String {
    let (best, worst) =
        rates.iter().fold((f64::MIN, f64::MAX), |(best, worst), rate| (best.max(*rate), worst.min(*rate)));
    format!("{best:.0} and {worst:.0} MB/s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_shows_its_middle_and_its_end() {
        let spread = Spread((1..=100).rev().map(Duration::from_millis).collect());
        assert_eq!(spread.to_string(), " 51.00 ms in the middle,  96.00 ms at the 95th");
        assert_eq!(Spread::default().middle(), Duration::ZERO);
        assert_eq!(best_and_worst(&[3.0, 1.0, 2.0]), "3 and 1 MB/s");
    }
}
