// A path in a table breaks between its names. Each cell of a table that is too wide for a phone gets
// its column's name, which pages.css shows.
document.addEventListener("DOMContentLoaded", () => {
    for (const path of document.querySelectorAll("table.docutils td:last-child code span.pre"))
        path.innerHTML = path.innerHTML.replace(/[/_](?=\w)/g, "$&<wbr>");
    for (const table of document.querySelectorAll("table.docutils")) {
        const names = [...table.querySelectorAll("thead th")].map((name) => name.textContent.trim());
        const code = table.querySelector("td:nth-child(n+2) code");
        if (names.length < 3 || (names.length === 3 && !code)) continue;
        table.classList.add("blocks");
        for (const row of table.querySelectorAll("tbody tr"))
            [...row.children].forEach((cell, column) => {
                if (!cell.textContent.trim()) cell.replaceChildren();
                else if (column && names[column]) cell.dataset.label = names[column] + ": ";
            });
    }
});
