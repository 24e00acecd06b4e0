//! The word count that `run wordcount` runs and `bench words` measures.

use crate::api::{Environment, KeyedStream, Stream};
use crate::config::Config;
use crate::operator::chain::Chain;
use crate::operator::words::words;
use crate::record::KeySelector;
use crate::source::SourceContext;
use crate::source::text::TextPlan;
use std::io::Write;
use tidegate_shard::topology;

/// The words of a text, divided by word.
pub(super) fn by_word(
    env: &Environment,
    text: &TextPlan,
    parallelism: u32,
) -> KeyedStream<String, String, impl for<'a> KeySelector<'a, String, String> + Clone + Send + Sync + 'static>
{
    let source = text.clone();
    let mut scratch = String::new();
    env.source("text", move |cx: &SourceContext| Ok(source.source(cx)))
        .flat_map::<String, _>(move |line, out| words(line, &mut scratch, |word| out.emit(word)))
        .name("words")
        .key_by::<String, _>(|word: &str| word)
        .parallelism(parallelism)
}

/// Each word of a text with its count, once all is read.
pub(super) fn counts_at_end(
    env: &Environment,
    text: &TextPlan,
    parallelism: u32,
) -> Stream<(String, u64), impl Chain<(String, u64)>> {
    by_word(env, text, parallelism).count_at_end()
}

/// `word<TAB>count`.
pub(super) fn row((word, count): (&str, u64), row: &mut Vec<u8>) {
    row.extend_from_slice(word.as_bytes());
    // Writing to a vector cannot fail.
    let _ = writeln!(row, "\t{count}");
}

/// The parallelism of text and count: where nobody says, one instance a shard, as for every job.
pub(super) fn parallelism(config: &Config) -> std::io::Result<u32> {
    match config.shards() {
        _ if config.is_set("parallelism.default") => Ok(config.parallelism()),
        Some(shards) => Ok(shards),
        None => Ok(topology::allowed_cores()?.len() as u32),
    }
}
