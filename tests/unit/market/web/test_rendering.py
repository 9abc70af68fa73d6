"""Can a text that somebody else chose become a part of a page, or turn what follows it?"""

from market.web.rendering import environment


def test_environment__text_of_a_stranger__is_escaped_and_steers_nothing() -> None:
    template = environment().from_string('<b title="{{ name }}">{{ name }}</b> {{ name | tojson }}')

    said = template.render(name='a\u202e"<i>\x1b\nb')

    assert said == (
        '<b title="a?&#34;&lt;i&gt;? b">a?&#34;&lt;i&gt;? b</b> '
        '"a\\u202e\\"\\u003ci\\u003e\\u001b\\nb"'
    )
